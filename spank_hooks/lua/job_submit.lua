-- The rules of hpcext in slurmctld. It runs as SlurmUser and holds slurmctld's locks: it looks
-- at the request and at nothing else, reads no file of a user, starts no command, cannot wait.
--
-- Not a script of its own: the site's job_submit.lua loads it at its end, as
-- `hpcext-admin install slurm` shows. A job without options of hpcext is left as it is.

local directory = debug.getinfo(1, "S").source:match("^@(/.*/)[^/]*$")
local rules = assert(loadfile(assert(directory, "not loaded by an absolute path") .. "rules.lua"))()

-- slurmctld sees options of SPANK plugins as lines of spank_job_env, an array that begins at 0;
-- they are whatever the client sent, however many and however long.
local PREFIX = "_SLURM_SPANK_OPTION_hpcext_hpcext_"
local MOST_LINES = 1000
local MOST_CHARS = 128 -- of a name and its value: no value of ours is half as long, so a cut one is refused

local function option_of(line)
    if line:sub(1, #PREFIX) == PREFIX then
        return line:sub(#PREFIX + 1, #PREFIX + MOST_CHARS):match("^([%w_]+)=(.*)$")
    end
end

-- The options by name, or nil and why nobody looks for them.
local function options_of(request)
    local count = tonumber(request.spank_job_env_size) or 0
    if count > MOST_LINES then
        return nil, "its plugins sent more than " .. MOST_LINES .. " lines"
    end
    local found = {}
    if count == 0 then
        return found
    end
    -- Once: with each access of the field Slurm makes the whole table anew.
    local lines = request.spank_job_env
    for index = 0, count - 1 do
        local name, value = option_of(tostring(lines[index]))
        if name then
            found[name] = value
        end
    end
    return found
end

-- Why a job is refused, or nil.
local function check(request)
    local options, unread = options_of(request)
    if unread then
        -- Only to who submits: slurmctld's log is not theirs to fill.
        slurm.log_user("%s", "hpcext: options are not looked at: " .. unread)
        return nil
    elseif next(options) == nil then
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
    if again and request.requeue == slurm.NO_VAL16 and request.script then
        request.requeue = 1
    end
    return nil
end

rules.before("slurm_job_submit", check, function(text)
    slurm.log_user("%s", text)
end)
