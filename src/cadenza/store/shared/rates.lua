-- Takes tickets of rates, or gives them back: the rule of core/rates.py, in whole nanoseconds of this server's clock.
-- KEYS: the rates. ARGV, three for each: the nanoseconds of one ticket, those of the whole burst, 1 to take or -1 to give back.
-- The value of a key is the time at which its whole burst is available again: seconds, then nine digits of nanoseconds.
-- Times since 1970 in nanoseconds are too large for a Lua number, so only differences are computed in nanoseconds.
-- Returns two numbers for each key: 1 if the ticket is granted, and the nanoseconds until the whole burst is available.
local now = redis.call('TIME')
local now_s, now_ns = tonumber(now[1]), tonumber(now[2]) * 1000
local answers = {}
for i, key in ipairs(KEYS) do
  local step, span, count = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local value = redis.call('GET', key)
  local reset, is_forgiven = 0, false
  if value then
    reset = (tonumber(string.sub(value, 1, -10)) - now_s) * 1e9 + tonumber(string.sub(value, -9)) - now_ns
    is_forgiven = reset > span -- a debt from an earlier, slower rate
    reset = math.min(math.max(reset, 0), span)
  end
  local granted = count < 0 or reset + step <= span
  if granted or is_forgiven then
    reset = granted and math.max(reset + count * step, 0) or reset
    local whole_ns = now_ns + reset
    local s = math.floor(whole_ns / 1e9)
    local whole_at = string.format('%.0f%09.0f', now_s + s, whole_ns - s * 1e9)
    redis.call('SET', key, whole_at, 'PX', string.format('%.0f', math.ceil(reset / 1e6) + 1))
  end
  answers[2 * i - 1] = granted and 1 or 0
  answers[2 * i] = string.format('%.0f', reset)
end
return answers
