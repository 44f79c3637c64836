-- finish writes the outcome of a run and releases its lease.
--
-- KEYS  1 lock  2 run record  3 snapshot  then indexes that name the run, then steps
-- ARGV  1 owner  2 outcome: succeeded or failed  3 retention ms  4 index member
--       5 result, '' for none  6 reason, '' for none  7 which key is the first of steps
-- returns 1 written, 0 lost
--
-- Atomic, because an outcome without its release would block the run for a TTL,
-- and a release without its outcome would run it again. Safe to run twice: what
-- this owner finished so is finished. A failed run keeps snapshot and steps.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  local f = redis.call('HMGET', KEYS[2], 'owner', 'state')
  if f[1] == ARGV[1] and f[2] == ARGV[2] then
    return 1
  end
  return 0
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
redis.call('HSET', KEYS[2], 'state', ARGV[2], 'ended', now, 'reason', ARGV[6])
redis.call('HDEL', KEYS[2], 'payload', 'result', 'retry_at')
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[2], 'result', ARGV[5])
end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('DEL', KEYS[1])
for i = 4, tonumber(ARGV[7]) - 1 do
  redis.call('ZREM', KEYS[i], ARGV[4])
end
if ARGV[2] == 'succeeded' then
  redis.call('DEL', KEYS[3])
  for i = tonumber(ARGV[7]), #KEYS do
    redis.call('DEL', KEYS[i])
  end
end
return 1
