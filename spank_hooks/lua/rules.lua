-- What job_submit.lua and cli_filter.lua share: the options of hpcext, read and checked.
-- Slurm is linked with Lua 5.1 (Debian) to 5.4: only what all of these have is used here.

local rules = {}

rules.LEAD_S = 120
rules.MOST_GPUS = 1024
rules.MOST_NODES = 10000
rules.MOST_SHOWN = 60

-- A value as messages show it: in quotes, cut, without what a terminal would obey.
function rules.shown(text, most)
    local clean = tostring(text):sub(1, most or rules.MOST_SHOWN):gsub("[^\32-\126]", "?")
    return "'" .. clean .. "'"
end

-- A whole number in low..high as it is written, or nil.
local function whole(text, low, high)
    if not text:find("^[1-9]%d*$") or #text > 9 then
        return nil
    end
    local value = tonumber(text)
    return value >= low and value <= high and value or nil
end

-- MIN:MAX as two numbers, or nil.
local function range(text, most)
    local low, high = text:match("^(%d+):(%d+)$")
    low, high = low and whole(low, 1, most), high and whole(high, 1, most)
    if low and high and low <= high then
        return low, high
    end
    return nil
end

-- Seconds. An option without its argument is "(null)" in job_submit and "set" in cli_filter.
local function lead(text)
    if text == "" or text == "(null)" or text == "set" then
        return rules.LEAD_S
    end
    return whole(text, 10, 86400)
end

local function gpus(text)
    if text == "auto" then
        return {auto = true}
    end
    local count = whole(text, 1, rules.MOST_GPUS)
    if count then
        return {count = count}
    end
    local low, high = range(text, rules.MOST_GPUS)
    return low and {low = low, high = high}
end

-- The rule of hpcext profile --name. Nothing in such a name means anything to a shell.
local function scaling(text)
    if #text <= 64 and text:find("^[%w][%w._-]*$") and not text:find("^%d+$") then
        return text
    end
    return nil
end

local function trainer(text)
    local low, high = range(text, rules.MOST_NODES)
    return low and {low = low, high = high}
end

-- PRESETS of hpcext/checkpointers.py.
local PRESETS = {
    "lightning", "transformers", "accelerate", "submitit", "keras", "jax", "torchrun", "plain",
    "transparent",
}

local function checkpoint(text)
    for _, preset in ipairs(PRESETS) do
        if text == preset then
            return preset
        end
    end
    return nil
end

local OPTIONS = {
    {name = "suspendable", read = lead, valid = "whole seconds, 10 to 86400"},
    {name = "gpus", read = gpus, valid = "auto, N or MIN:MAX, 1 to " .. rules.MOST_GPUS},
    {
        name = "scaling",
        read = scaling,
        valid = "letters, digits, . _ -; a letter or digit first; not a number; at most 64",
    },
    {name = "trainer", read = trainer, valid = "MIN:MAX nodes, 1 to " .. rules.MOST_NODES},
    {name = "checkpoint", read = checkpoint, valid = table.concat(PRESETS, ", ")},
}

-- Read the options of a job.
-- given(name): the text of --hpcext-NAME, or nil.
-- Returns a table of values, or nil and one line that says what is wrong.
function rules.read(given)
    local values = {}
    for _, option in ipairs(OPTIONS) do
        local text = given(option.name)
        if text ~= nil then
            local value = option.read(tostring(text))
            if value == nil then
                local what = "--hpcext-" .. option.name .. ": " .. rules.shown(text)
                return nil, what .. " (valid: " .. option.valid .. ")"
            end
            values[option.name] = value
        end
    end
    if values.gpus and not values.gpus.count and not values.scaling then
        local what = "--hpcext-gpus: " .. rules.shown(given("gpus")) .. " needs a scaling curve"
        return nil, what .. "; add --hpcext-scaling=NAME (hpcext profile --list shows the names)"
    end
    if values.checkpoint and not values.suspendable and not values.trainer then
        local what = "--hpcext-checkpoint: " .. rules.shown(given("checkpoint"))
        return nil, what .. " belongs to --hpcext-suspendable or --hpcext-trainer; add one of them"
    end
    return values
end

-- Call a rule. An error in it is our own: it is logged, and the job passes.
-- Returns slurm.ERROR if the rule refuses the job, having told tell() why; else slurm.SUCCESS.
function rules.guard(rule, tell, ...)
    local done, refused = pcall(rule, ...)
    if not done then
        local why = rules.shown(refused, 300)
        slurm.log_error("hpcext: a rule failed, the job passes: %s", why)
    elseif refused then
        tell("hpcext: " .. refused)
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

-- Put a rule before a function of the site's script. Ours comes first, so the site has the
-- last word; an error in the site's function stays what it is without us.
function rules.before(name, rule, tell)
    local sites = _G[name]
    if type(sites) ~= "function" then
        error("no function " .. name .. " yet: these lines belong at the end of the script")
    end
    _G[name] = function(...)
        if rules.guard(rule, tell, ...) ~= slurm.SUCCESS then
            return slurm.ERROR
        end
        return sites(...)
    end
end

return rules
