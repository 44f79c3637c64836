-- recover_scan finds what a recoverer must look at, and who is dead.
--
-- KEYS  1 processes  2 present  3 runs that wait
-- ARGV  1 what keys of a process' leases start with  2 what channels start with
--       3 the calling process  4 'off', 'look' or 'judge'  5 most entries
--       6 retention ms  7 ms for which a process must be gone
-- returns {presence, ms until something else is due or -1,
--          process or '' for a run that waits, '1' if it is dead, run, score,  ...}
--       presence: 'off'; 'seen' or 'unseen': the subscription of the caller;
--       else the error with which Redis refuses to count subscriptions
--
-- Present holds, for each process that was seen subscribed, when that was first
-- so, or minus the ms when it was first seen gone. Only those may be judged; one
-- that takes or extends a lease after it was seen gone is off the list. The
-- caller is alive, so what its own subscription looks like never speaks against
-- it; and when it is not seen, neither is that of others.
--
-- Atomic, because an empty process must not be forgotten while a lease of it is
-- written. All keys share a slot, those made here too. It reads the first entries
-- of one set per process, however many leases there are.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local me, mode, left = ARGV[3], ARGV[4], tonumber(ARGV[5])
local due = -1
local function by(at)
  if due < 0 or at - now < due then
    due = math.max(0, at - now)
  end
end

-- Who is dead.
local procs = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local presence, dead, marks = mode, {}, {}
local flat = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #flat, 2 do
  marks[flat[i]] = tonumber(flat[i + 1])
end
if mode ~= 'off' then
  local all, listed = {me}, {[me] = true}
  for _, list in ipairs({procs, flat}) do
    for i = 1, #list, 2 do
      if not listed[list[i]] then
        listed[list[i]] = true
        all[#all + 1] = list[i]
      end
    end
  end
  for from = 1, #all, 500 do -- the stack of Lua is bounded
    local channels = {}
    for i = from, math.min(from + 499, #all) do
      channels[#channels + 1] = ARGV[2] .. all[i]
    end
    local counts = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))
    if counts.err then
      presence = counts.err
      break
    end
    if from == 1 then
      presence = 'unseen'
      if tonumber(counts[2]) > 0 then
        presence = 'seen'
      end
    end
    for i = 1, #channels do
      local p, mark = all[from + i - 1], marks[all[from + i - 1]]
      if tonumber(counts[2 * i]) > 0 then
        if not mark or mark < 0 then
          redis.call('ZADD', KEYS[2], now, p)
        end
      elseif mark and p ~= me and mode == 'judge' and presence == 'seen' then
        if mark >= 0 then
          redis.call('ZADD', KEYS[2], -now, p)
          by(now + tonumber(ARGV[7]))
        elseif now + mark < tonumber(ARGV[7]) then
          by(tonumber(ARGV[7]) - mark)
        elseif redis.call('EXISTS', ARGV[1] .. p) == 1 then
          dead[p] = true
        else
          redis.call('ZREM', KEYS[2], p)
          redis.call('ZREM', KEYS[1], p)
        end
      end
    end
  end
end
if presence ~= 'seen' and marks[me] then
  redis.call('ZREM', KEYS[2], me)
end
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[6]) / 2 then
  redis.call('PEXPIRE', KEYS[2], ARGV[6])
end

-- What is due: all of the dead, and of the others what has expired.
local found = {}
local function collect(key, p, flag, limit)
  local e = {}
  if left > 0 then
    e = redis.call('ZRANGEBYSCORE', key, '-inf', limit, 'WITHSCORES', 'LIMIT', 0, left)
  end
  for i = 1, #e, 2 do
    for _, v in ipairs({p, flag, e[i], e[i + 1]}) do
      found[#found + 1] = v
    end
  end
  left = left - #e / 2
  if left <= 0 then
    due = 0
  elseif flag == '0' then
    local first = redis.call('ZRANGEBYSCORE', key, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if #first > 0 then
      by(tonumber(first[2]))
    end
  end
end
for i = 1, #procs, 2 do
  local p = procs[i]
  if dead[p] then
    collect(ARGV[1] .. p, p, '1', '+inf')
  elseif tonumber(procs[i + 1]) < now and redis.call('EXISTS', ARGV[1] .. p) == 0 then
    redis.call('ZREM', KEYS[1], p)
  else
    collect(ARGV[1] .. p, p, '0', now)
  end
end
collect(KEYS[3], '', '0', now)
table.insert(found, 1, due)
table.insert(found, 1, presence)
return found
