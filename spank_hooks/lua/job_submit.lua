-- The rules of hpcext in slurmctld. It runs as SlurmUser and holds slurmctld's locks: it looks
-- at the request and at nothing else, reads no file of a user, starts no command, cannot wait.
--
-- Not a script of its own: the site's job_submit.lua loads it at its end, as
-- `hpcext-admin install slurm` shows. A job without options of hpcext is left as it is.

local directory = debug.getinfo(1, "S").source:match("^@(/.*/)[^/]*$")
local rules = assert(loadfile(assert(directory, "not loaded by an absolute path") .. "rules.lua"))()

-- slurmctld sees options of SPANK plugins as lines of spank_job_env, an array that begins at 0;
-- they are whatever the client sent.
local PREFIX = "_SLURM_SPANK_OPTION_hpcext_hpcext_"
local MOST_LINES = 1000

local function options_of(request)
    local found = {}
    local count = math.min(tonumber(request.spank_job_env_size) or 0, MOST_LINES)
    for index = 0, count - 1 do
        local line = tostring(request.spank_job_env[index])
        if line:sub(1, #PREFIX) == PREFIX then
            local name, value = line:sub(#PREFIX + 1):match("^([%w_]+)=(.*)$")
            if name then
                found[name] = value
            end
        end
    end
    return found
end

-- Why a job is refused, or nil.
local function check(request)
    local options = options_of(request)
    if next(options) == nil then
        return nil
    end
    local values, wrong = rules.read(function(name)
        return options[name]
    end)
    if not values then
        return wrong
    end
    -- Only a batch script can be run again; NO_VAL16 is a user who said nothing of it.
    local again = values.suspendable or values.trainer
    if again and request.script and request.requeue == slurm.NO_VAL16 then
        request.requeue = 1
    end
    return nil
end

rules.before("slurm_job_submit", check, function(text)
    slurm.log_user("%s", text)
end)
