-- recover_fail ends a run that no delivery can help any more.
--
-- KEYS  1 lock  2 run record
-- ARGV  1 token it was judged by  2 retention ms  3 reason  4 the caller
-- returns 1 failed by this caller, 0 something else became of it
--
-- Atomic, because an attempt that has begun since must not be overruled. Safe to
-- run twice by the same caller. Snapshot and steps stay for a Rerun.
local f = redis.call('HMGET', KEYS[2], 'state', 'token', 'claim_by')
if redis.call('EXISTS', KEYS[1]) == 1 or f[2] ~= ARGV[1] then
  return 0
end
if f[1] == 'failed' and f[3] == ARGV[4] then
  return 1
end
if f[1] ~= 'running' and f[1] ~= 'retrying' then
  return 0
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
redis.call('HSET', KEYS[2], 'state', 'failed', 'ended', now, 'reason', ARGV[3], 'claim_by', ARGV[4])
redis.call('HDEL', KEYS[2], 'payload', 'retry_at')
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
