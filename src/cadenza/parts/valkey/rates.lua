-- Takes tickets of rates, or gives them back: the rule of core/rates.py, in whole nanoseconds of this server's clock.
-- KEYS: the time since which the server has its data, then the rates.
-- ARGV: the milliseconds in which processes send an empty server their state, then three for each rate: the nanoseconds of
-- one ticket, those of the whole burst, and 1 to take or -1 to give back. Or, to send a state: the least nanoseconds until the
-- whole burst is available, 0, and 0.
-- The value of a rate is the time at which its whole burst is available again: seconds, then nine digits of nanoseconds.
-- Times since 1970 in nanoseconds are too large for a Lua number, so only differences are computed in nanoseconds.
-- Returns 1 if all processes have sent their state, or 0, and then no ticket is granted; the time since which it has its data;
-- and two numbers for each rate: 1 if the ticket is granted, and the nanoseconds until the whole burst is available.
local now = redis.call('TIME')
local now_s, now_ns = tonumber(now[1]), tonumber(now[2]) * 1000
local now_ms = now_s * 1000 + math.floor(now_ns / 1e6)
local since_ms = tonumber(redis.call('GET', KEYS[1]) or 'none')
if not since_ms or since_ms > now_ms then -- the server is empty, or its clock was set back
  since_ms = now_ms
  redis.call('SET', KEYS[1], string.format('%.0f', since_ms))
end
local is_settled = now_ms - since_ms >= tonumber(ARGV[1])
local answers = { is_settled and 1 or 0, string.format('%.0f', since_ms) }
for i = 1, #KEYS - 1 do
  local key = KEYS[i + 1]
  local step, span, count = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  local value = redis.call('GET', key)
  local reset, is_changed = 0, false
  if value then
    reset = (tonumber(string.sub(value, 1, -10)) - now_s) * 1e9 + tonumber(string.sub(value, -9)) - now_ns
    reset = math.max(reset, 0)
  end
  local granted = false
  if count == 0 then
    is_changed = step > reset
    reset = math.max(reset, step)
  else
    is_changed = reset > span -- a debt from an earlier, slower rate, which is forgiven
    reset = math.min(reset, span)
    granted = count < 0 or (is_settled and reset + step <= span)
    if granted then
      is_changed = true
      reset = math.max(reset + count * step, 0)
    end
  end
  if is_changed then
    local whole_ns = now_ns + reset
    local s = math.floor(whole_ns / 1e9)
    local whole_at = string.format('%.0f%09.0f', now_s + s, whole_ns - s * 1e9)
    redis.call('SET', key, whole_at, 'PX', string.format('%.0f', math.ceil(reset / 1e6) + 1))
  end
  answers[2 * i + 1] = granted and 1 or 0
  answers[2 * i + 2] = string.format('%.0f', reset)
end
return answers
