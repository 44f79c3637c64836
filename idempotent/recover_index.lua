-- recover_index moves index entries to where they are to be looked at next.
--
-- KEYS  1 runs that wait  2 processes
-- ARGV  1 what keys of a process' leases start with  2 retention ms
--       then for each entry: where it was found, run, score it had,
--       where it belongs, ms until it is due, ms ahead to which others may have
--       moved it, because the mover has claimed the run; 0 where it has not
--       where: a process, '' for runs that wait, '-' for nowhere
-- returns 1
--
-- Atomic, because an entry that was written anew since it was found says more than
-- the finder knows: it stays. Safe to run twice.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local function key(where)
  if where == '' then
    return KEYS[1]
  end
  return ARGV[1] .. where
end
for i = 3, #ARGV, 6 do
  local from, run, to, at = ARGV[i], ARGV[i + 1], ARGV[i + 3], now + tonumber(ARGV[i + 4])
  local score = redis.call('ZSCORE', key(from), run)
  local slack = tonumber(ARGV[i + 5])
  if score and (tonumber(score) == tonumber(ARGV[i + 2]) or slack > 0 and tonumber(score) <= now + slack) then
    redis.call('ZREM', key(from), run)
    if to ~= '-' then
      local there = redis.call('ZSCORE', key(to), run) -- the earlier look is the one that matters
      if not there or tonumber(there) > at then
        redis.call('ZADD', key(to), at, run)
      end
      local kept = tonumber(ARGV[2]) + tonumber(ARGV[i + 4]) -- the index must outlive the wait
      if redis.call('PTTL', key(to)) < kept then
        redis.call('PEXPIRE', key(to), kept)
      end
      if to ~= '' then
        if tonumber(redis.call('ZSCORE', KEYS[2], to) or '0') < at then
          redis.call('ZADD', KEYS[2], at, to)
        end
        redis.call('PEXPIRE', KEYS[2], ARGV[2])
      end
    end
  end
end
return 1
