-- The rules of hpcext in sbatch, salloc and srun. They run as the user, before anything is
-- sent: what is wrong is said at once, and what the options imply is filled in.
--
-- Not a script of its own: the site's cli_filter.lua loads it at its end with a table of
-- settings, as `hpcext-admin install slurm` shows:
--   command   absolute path of hpcext, which knows the user's scaling curves
--   tickets   partition of jobs that wait for a trainer, if their user names none

local settings = ... or {}

local directory = debug.getinfo(1, "S").source:match("^@(/.*/)[^/]*$")
local rules = assert(loadfile(assert(directory, "not loaded by an absolute path") .. "rules.lua"))()

local COMMAND_S = 20

-- Say something that is no error. slurm.log_info is "sbatch: lua: TEXT" on stderr.
local function note(text)
    slurm.log_info("%s", "hpcext: " .. text)
end

-- One argument for /bin/sh, whatever it holds.
local function quoted(word)
    return "'" .. word:gsub("'", "'\\''") .. "'"
end

-- Run a command: its exit status, and the last line that it printed.
-- The status is printed too: io.popen tells it from Lua 5.2 on only.
local function run(words)
    local line = {}
    for index, word in ipairs(words) do
        line[index] = quoted(word)
    end
    -- The file system of a user may hang: sbatch must not.
    local shell = "timeout -k 1 " .. COMMAND_S .. " " .. table.concat(line, " ") .. " 2>&1"
    local pipe = assert(io.popen(shell .. "; printf '\\n%s\\n' $?", "r"))
    local said = pipe:read("*a")
    pipe:close()
    local before, status = said:match("^(.-)%s*\n(%d+)%s*$")
    return tonumber(status), (before or ""):match("([^\n]*)$")
end

-- How many GPUs the curve of a name says, or nil and why the job is refused.
-- If hpcext itself does not work, the job gets the fewest that it can use.
local function best(name, low, high)
    local words = {settings.command, "profile", "--best", name}
    if high then
        words[#words + 1] = "--gpus=" .. low .. "-" .. high
    end
    local status, said = run(words)
    local count = status == 0 and said:match("^%d+$") and tonumber(said)
    if count and count >= low and count <= (high or rules.MOST_GPUS) then
        return count
    end
    if status == 2 then -- bad input: said in one line, and for the user to mend
        return nil, "--hpcext-scaling: " .. said:gsub("^hpcext: ", ""):gsub("[^\32-\126]", "?")
    end
    local why = "exit status " .. tostring(status) .. ", " .. rules.shown(said)
    note("the curve " .. name .. " could not be read (" .. why .. "); asking for " .. low .. " GPU")
    return low
end

-- Has the user said how many GPUs there are to be?
local function has_gpus(options)
    for _, name in ipairs({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"}) do
        if options[name] ~= nil then
            return true
        end
    end
    -- As Slurm writes it: gres:gpu:2,gres:other:1; from 24.11 on gres/gpu:2
    return ("," .. (options.gres or "") .. ","):find("[,:/]gpu[,:=]") ~= nil
end

local function fill_gpus(options, values)
    if has_gpus(options) then
        note("the GPUs asked for beside --hpcext-gpus are taken")
        return nil
    end
    local gpus = values.gpus
    local count, wrong = gpus.count, nil
    if not count then
        count, wrong = best(values.scaling, gpus.low or 1, gpus.high)
    end
    if not count then
        return wrong
    end
    local others = options.gres and options.gres .. "," or ""
    options.gres = others .. "gpu:" .. count
    return nil
end

-- What a job needs that is to be suspended and to go on, where the user has not said otherwise.
local function fill_suspendable(options, lead_s)
    if options.type ~= "sbatch" then
        note("--hpcext-suspendable is for batch scripts; here it has no effect")
        return
    end
    if options.requeue == "unset" then
        options.requeue = "set"
    elseif options.requeue == "no-requeue" then
        note("with --no-requeue a suspended job does not go on by itself")
    end
    if options["open-mode"] == nil then
        options["open-mode"] = "append" -- else the log of the first run is lost
    end
    -- To the batch shell alone, which is hpcext's: a step of the script would die of it.
    if options.signal == nil or options.signal == "0@0" then
        options.signal = "B:USR2@" .. lead_s
    end
end

-- The job itself does not train: it waits for a trainer elsewhere, which --hpcext-gpus is about.
local function fill_trainer(options)
    if options.requeue == "unset" then
        options.requeue = "set"
    end
    if options["open-mode"] == nil then
        options["open-mode"] = "append" -- else what was shown before is lost
    end
    -- On a node that could be harvested it would keep that from being idle.
    if settings.tickets and options.partition == nil then
        options.partition = settings.tickets
    end
    return nil
end

-- Why a job is refused, or nil.
local function check(options)
    local given = options.spank and options.spank.hpcext
    if not given or next(given) == nil then
        return nil
    end
    -- An srun in a job has inherited the options of the job; its step is already paid for.
    if options.type == "srun" and options.jobid ~= nil then
        return nil
    end
    local values, wrong = rules.read(function(name)
        return given["hpcext-" .. name]
    end)
    if not values then
        return wrong
    end
    if values.trainer and options.type == "sbatch" then
        return fill_trainer(options)
    elseif values.trainer then
        note("--hpcext-trainer is for batch scripts; here it has no effect")
    end
    if values.suspendable then
        fill_suspendable(options, values.suspendable)
    end
    if values.gpus then
        return fill_gpus(options, values)
    end
    return nil
end

rules.before("slurm_cli_pre_submit", check, function(text)
    slurm.log_error("%s", text)
end)
