-- abandon releases a lease without an outcome: another attempt will follow.
--
-- KEYS  1 lock  2 run record  3 void  [4 leases of this process  5 runs that wait]
-- ARGV  1 owner  2 retention ms  3 index member  4 ms until the next attempt  5 reason
--       6 '1' when it uses up a retry  7 ms after that when a recoverer looks
--       8 ms for which a begin of this owner that is still on its way shall do
--       nothing, 0 when it was answered
-- returns 1 released, 0 lost
--
-- Atomic, because a release that is not noted would count as a crash. Safe to
-- run twice. Snapshot and steps stay for the next attempt. From here on the run
-- depends on its delivery, so a recoverer looks whether there is one.
if ARGV[8] ~= '0' then
  redis.call('SET', KEYS[3], '1', 'PX', ARGV[8])
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  local f = redis.call('HMGET', KEYS[2], 'owner', 'state')
  if f[1] == ARGV[1] and f[2] == 'retrying' then
    return 1
  end
  return 0
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
redis.call('HSET', KEYS[2], 'state', 'retrying', 'retry_at', now + tonumber(ARGV[4]), 'reason', ARGV[5], 'used', ARGV[6])
local kept = tonumber(ARGV[2]) + tonumber(ARGV[4]) -- the record must outlive the wait
redis.call('PEXPIRE', KEYS[2], kept)
redis.call('DEL', KEYS[1])
if KEYS[4] then
  redis.call('ZREM', KEYS[4], ARGV[3])
  redis.call('ZADD', KEYS[5], now + tonumber(ARGV[4]) + tonumber(ARGV[7]), ARGV[3])
  if redis.call('PTTL', KEYS[5]) < kept then
    redis.call('PEXPIRE', KEYS[5], kept)
  end
end
return 1
