-- reserve answers a producer: may this run be enqueued now?
--
-- KEYS  1 guard  2 run record  3 lock  4 void
-- ARGV  1 owner  2 guard window ms  3 fingerprint  4 retention ms  5 queue
--       6 a queue in which the caller has looked and found no task of the run, or ''
-- returns
--   {'reserved', generation}
--   {'mismatch', state}                           same key, other payload
--   {'succeeded', ended ms}
--   {'duplicate', state, holder, ms until it is worth asking again}
--   {'elsewhere', queue, generation}              it may be in that queue: look there
--   {'void'}                                      release was first: nothing is done
--
-- Atomic, because two producers must not both find the run new. Safe to run
-- twice: an owner that has the guard has it again. A run that is called queued
-- but whose guard is over may have no task (its producer died in between): it
-- can be reserved again, and asynq's task ID decides. That is only unique in its
-- queue, so in another one the caller has to look.
if redis.call('EXISTS', KEYS[4]) == 1 then
  return {'void'}
end
local f = redis.call('HMGET', KEYS[2], 'state', 'fp', 'gen', 'process', 'retry_at', 'ended', 'queue')
local state = f[1]
local holder = redis.call('GET', KEYS[1])
if state then
  if f[2] and f[2] ~= ARGV[3] then
    return {'mismatch', state}
  end
  if state == 'succeeded' then
    return {'succeeded', tonumber(f[6] or '0')}
  end
  if state == 'failed' then
    return {'duplicate', state, '', 0}
  end
  if state == 'running' then
    return {'duplicate', state, f[4] or '', math.max(0, redis.call('PTTL', KEYS[3]))}
  end
  if state == 'retrying' then
    local t = redis.call('TIME')
    local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
    return {'duplicate', state, '', math.max(0, tonumber(f[5] or '0') - now)}
  end
end
if holder and holder ~= ARGV[1] then
  return {'duplicate', 'queued', '', math.max(0, redis.call('PTTL', KEYS[1]))}
end
if state and not holder and f[7] and f[7] ~= ARGV[5] and f[7] ~= ARGV[6] then
  return {'elsewhere', f[7], tonumber(f[3] or '1')}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('HSET', KEYS[2], 'queue', ARGV[5])
if not state then
  redis.call('HSET', KEYS[2], 'state', 'queued', 'fp', ARGV[3], 'gen', f[3] or '1', 'by', ARGV[1])
end
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[4]) then -- one that is to begin much later lives longer
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
return {'reserved', tonumber(f[3] or '1')}
