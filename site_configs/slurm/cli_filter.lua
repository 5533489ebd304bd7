-- /etc/slurm/cli_filter.lua of a site that has no rules of its own, on every node where jobs
-- are submitted. In slurm.conf: CliFilterPlugins=lua

function slurm_cli_setup_defaults(options, early)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
    return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job, step)
    return slurm.SUCCESS
end

-- hpcext: the last lines of the file. Whatever is wrong with hpcext, jobs are submitted.
do
    local done, why = pcall(function()
        local settings = {command = "/usr/local/bin/hpcext"}
        assert(loadfile("/usr/local/lib/hpcext/slurm/lua/cli_filter.lua"))(settings)
    end)
    if not done then
        slurm.log_error("hpcext: no rules: %s", tostring(why))
    end
end
