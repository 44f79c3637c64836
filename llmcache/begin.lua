-- Look for an answer; when there is none, take the lease of the call and write
-- its in-flight record.
--
-- KEYS[1] answer  hash: d data, b owner that stored it, and what it cost
-- KEYS[2] lease   string: the owner
-- KEYS[3] flights hash: call id -> "<owner> <fence> <note>"
-- KEYS[4] once    string: this hit has been counted
-- KEYS[5] book    hash: the ledger's sums; absent when counted elsewhere
-- ARGV[1] owner  ARGV[2] lease ms  ARGV[3] call id  ARGV[4] note
-- ARGV[5] ms that flights and book live  ARGV[6] ms a found answer lives at least, or 0
-- ARGV[7] '1' to not look  ARGV[8] '1' to refuse a call that may have been paid
-- ARGV[9] limit of calls  ARGV[10] of tokens  ARGV[11] of cost; 0 for none
-- ARGV[12] fencing token of the attempt, 0 outside runs
--
-- Returns {'found', data, pttl} | {'mine', note of an interrupted call or ''}
--       | {'held', pttl} | {'ambiguous', note} | {'spent', open calls}
--
-- Atomic because two workers that both found nothing would both pay. Twice by
-- one owner: the lease is its own, and a hit is counted once by KEYS[4].
local owner = ARGV[1]
if ARGV[7] ~= '1' then
  local costs = {'calls', 'in', 'out', 'cached', 'write', 'cost', 'unpriced'}
  local v = redis.call('HMGET', KEYS[1], 'd', unpack(costs))
  if v[1] then
    local ttl = redis.call('PTTL', KEYS[1])
    if ttl < tonumber(ARGV[6]) then
      ttl = tonumber(ARGV[6])
      redis.call('PEXPIRE', KEYS[1], ARGV[6])
    end
    if KEYS[5] and redis.call('SET', KEYS[4], '1', 'PX', 60000, 'NX') then
      for i, name in ipairs(costs) do
        if v[i + 1] then redis.call('HINCRBY', KEYS[5], 'saved_' .. name, v[i + 1]) end
      end
      redis.call('PEXPIRE', KEYS[5], ARGV[5])
    end
    return {'found', v[1], ttl}
  end
end

local holder = redis.call('GET', KEYS[2])
if holder == owner then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  return {'mine', ''}
end
local before = redis.call('HGET', KEYS[3], ARGV[3])
local by, fence, note
if before then by, fence, note = string.match(before, '^(%S+) (%d+) (.*)$') end
-- An attempt that holds the run need not wait for the call of one that lost it.
local overtaken = by and by == holder and tonumber(fence) > 0 and tonumber(fence) < tonumber(ARGV[12])
if holder and not overtaken then return {'held', redis.call('PTTL', KEYS[2])} end

note = note or ''
if before then
  if ARGV[8] == '1' then return {'ambiguous', note} end
end

if KEYS[5] then
  local open = redis.call('HLEN', KEYS[3])
  local b = redis.call('HMGET', KEYS[5], 'paid_calls', 'wasted_calls', 'paid_in', 'paid_out',
    'wasted_in', 'wasted_out', 'paid_cost', 'wasted_cost')
  for i = 1, 8 do b[i] = tonumber(b[i] or 0) end
  local function over(limit, spent, paid)
    local ahead = 1
    if b[1] > 0 then ahead = math.max(1, math.ceil(paid / b[1]) * (open + 1)) end
    return limit > 0 and spent + ahead > limit
  end
  local calls = tonumber(ARGV[9])
  if (calls > 0 and b[1] + b[2] + open + 1 > calls)
    or over(tonumber(ARGV[10]), b[3] + b[4] + b[5] + b[6], b[3] + b[4])
    or over(tonumber(ARGV[11]), b[7] + b[8], b[7]) then
    return {'spent', open}
  end
  if before then
    redis.call('HINCRBY', KEYS[5], 'wasted_calls', 1)
    redis.call('PEXPIRE', KEYS[5], ARGV[5])
  end
end

redis.call('SET', KEYS[2], owner, 'PX', ARGV[2])
redis.call('HSET', KEYS[3], ARGV[3], owner .. ' ' .. ARGV[12] .. ' ' .. ARGV[4])
redis.call('PEXPIRE', KEYS[3], ARGV[5])
return {'mine', note}
