-- Leases slots to one process. The sum of all leases stays within the ceiling.
-- KEYS[1]: a hash with a row for each process: "lease demand keys unmet until_ms".
-- It also has '@lost', when leases were found to be lost, and '@short', when processes were last asked to give back slots.
-- ARGV: the process; 'new', 'lapsed' or 'leased', as it knows its lease; the slots that it keeps whatever the answer is;
-- the most that it may have if the leases of others were lost; its slots in use; how many more it wants; its keys; the
-- ceiling; the milliseconds of a lease; a channel.
-- Returns the lease, the target (below the lease: slots to give back), the keys of other processes, and the processes.
local TURN_MS, SHORT_MS, FORGET_MS = 250, 5, 60000
local name, standing, has, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local taken, wanted, keys = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local ceiling, lease_ms, channel = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)

local function row(lease, demand, keys_there, unmet, until_ms)
  return string.format('%.0f %.0f %.0f %.0f %.0f', lease, demand, keys_there, unmet, until_ms)
end

local me = { name = name, demand = taken + wanted, keys = keys }
local all, leased, keys_elsewhere, before, is_awaited = { me }, 0, 0, nil, false
local lost, short
local rows = redis.call('HGETALL', KEYS[1])
for i = 1, #rows, 2 do
  local field, value = rows[i], rows[i + 1]
  if field == '@lost' then
    lost = tonumber(value)
  elseif field == '@short' then
    short = tonumber(value)
  else
    local lease, demand, keys_there, unmet, until_ms = string.match(value, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
    if tonumber(until_ms) <= now_ms then
      redis.call('HDEL', KEYS[1], field)
    elseif field == name then
      before = tonumber(lease)
    else
      if tonumber(until_ms) > now_ms + lease_ms then -- this server's clock was set back
        redis.call('HSET', KEYS[1], field, row(lease, demand, keys_there, unmet, now_ms + lease_ms))
      end
      all[#all + 1] = { name = field, demand = tonumber(demand), keys = tonumber(keys_there) }
      leased = leased + lease
      keys_elsewhere = keys_elsewhere + keys_there
      is_awaited = is_awaited or tonumber(unmet) > 0
    end
  end
end
if (standing == 'leased' and not before) or (standing == 'lapsed' and #rows == 0) then
  lost = now_ms
  redis.call('HSET', KEYS[1], '@lost', string.format('%.0f', now_ms))
end

-- My part when more slots are wanted than there are: by keys, and no process gets more than it wants.
local function fair_part()
  local open, left, weight = all, ceiling, 0
  while true do
    weight = 0
    for _, process in ipairs(open) do weight = weight + math.max(1, process.keys) end
    local greedy, given = {}, 0
    for _, process in ipairs(open) do
      if process.demand * weight <= left * math.max(1, process.keys) then
        if process == me then return process.demand end
        given = given + process.demand
      else
        greedy[#greedy + 1] = process
      end
    end
    if #greedy == #open then break end
    open, left = greedy, left - given
  end
  table.sort(open, function(a, b) return a.name < b.name end)
  local rest, my_place, part = left, 0, 0
  for place, process in ipairs(open) do
    local whole = math.floor(left * math.max(1, process.keys) / weight)
    rest = rest - whole
    if process == me then my_place, part = place, whole end
  end
  local turn = math.floor(now_ms / TURN_MS) % #open -- those that cannot be divided go to each process in turn
  return (my_place - 1 - turn) % #open < rest and part + 1 or part
end

local total = 0
for _, process in ipairs(all) do total = total + process.demand end
local target
if total > ceiling then
  target = fair_part()
elseif total == ceiling or is_awaited then
  target = me.demand
else
  target = me.demand + math.max(1, math.floor((ceiling - total) / (2 * #all))) -- some for the requests to come
end
if lost and lost <= now_ms and now_ms - lost < lease_ms then -- within this time all processes tell their leases
  target = math.min(target, math.max(has, most))
end
local lease = math.max(has, math.min(target, ceiling - leased))
local unmet = math.max(0, math.min(target, me.demand) - lease)
redis.call('HSET', KEYS[1], name, row(lease, me.demand, keys, unmet, now_ms + lease_ms))
redis.call('PEXPIRE', KEYS[1], FORGET_MS)
local is_throttled = short and short <= now_ms and now_ms - short < SHORT_MS
if #all > 1 and (standing ~= 'leased' or (unmet > 0 and not is_throttled)) then -- a process that joins is made known
  redis.call('HSET', KEYS[1], '@short', string.format('%.0f', now_ms))
  redis.call('PUBLISH', channel, 'short ' .. name)
elseif before and lease < before and is_awaited then
  redis.call('PUBLISH', channel, 'free ' .. name)
end
return { lease, target, keys_elsewhere, #all }
