-- expire ends a run whose delivery asynq gave up before it began.
--
-- KEYS  1 lock  2 run record
-- ARGV  1 generation  2 fingerprint  3 retention ms  4 reason  5 the caller, new
--       for each call  6 '1' when a run without a record is a run too
-- returns 1 failed by this caller, 0 it has begun, ended, or a newer delivery
--
-- Atomic, because an attempt that has begun meanwhile must not be overruled. Safe
-- to run twice by the same caller. Snapshot and steps stay for a Rerun.
local f = redis.call('HMGET', KEYS[2], 'state', 'gen', 'claim_by')
local gen, mine = tonumber(f[2] or ARGV[1]), tonumber(ARGV[1])
if f[1] == 'failed' and f[3] == ARGV[5] then
  return 1
end
if redis.call('EXISTS', KEYS[1]) == 1 or gen > mine or f[1] == 'succeeded' then
  return 0
end
if not f[1] and ARGV[6] ~= '1' then
  return 0
end
if f[1] and f[1] ~= 'queued' and gen == mine then -- of an older one we know that Rerun has not written yet
  return 0
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
redis.call('HSET', KEYS[2], 'state', 'failed', 'gen', mine, 'fp', ARGV[2], 'ended', now, 'reason', ARGV[4], 'claim_by', ARGV[5])
redis.call('HDEL', KEYS[2], 'payload', 'retry_at')
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
