-- /etc/slurm/job_submit.lua of a site that has no rules of its own.
-- In slurm.conf: JobSubmitPlugins=lua

function slurm_job_submit(request, partitions, uid)
    return slurm.SUCCESS
end

function slurm_job_modify(request, record, partitions, uid)
    return slurm.SUCCESS
end

-- hpcext: the last lines of the file. Whatever is wrong with hpcext, jobs are submitted.
do
    local done, why = pcall(function()
        assert(loadfile("/usr/local/lib/hpcext/slurm/lua/job_submit.lua"))()
    end)
    if not done then
        slurm.log_error("hpcext: no rules: %s", tostring(why))
    end
end
