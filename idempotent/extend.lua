-- extend keeps a lease alive.
--
-- KEYS  1 lock  2 run record  [3 leases of this process  4 processes  5 present]
-- ARGV  1 owner  2 lease TTL ms  3 retention ms  4 process  5 index member
-- returns 1 extended, 0 lost
--
-- Atomic, because between "it is mine" and "extend it" it could expire and be
-- another's. An expired lease is lost: it is never created again here.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
if KEYS[3] then
  local t = redis.call('TIME')
  local expiry = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000) + tonumber(ARGV[2])
  redis.call('ZADD', KEYS[3], expiry, ARGV[5])
  redis.call('PEXPIRE', KEYS[3], ARGV[3])
  redis.call('ZADD', KEYS[4], expiry, ARGV[4])
  redis.call('PEXPIRE', KEYS[4], ARGV[3])
  if tonumber(redis.call('ZSCORE', KEYS[5], ARGV[4]) or '0') < 0 then -- taken for gone, and lives
    redis.call('ZREM', KEYS[5], ARGV[4])
  end
end
return 1
