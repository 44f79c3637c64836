-- rerun opens a new generation of a run that is not running.
--
-- KEYS  1 guard  2 run record  3 lock
-- ARGV  1 owner  2 guard window ms  3 fingerprint  4 retention ms
--       5 '1' from scratch, '0' resume  6 a generation it must exceed
-- returns
--   {'reserved', generation, fields to restore should the enqueue fail (JSON)}
--   {'mismatch', state}
--   {'succeeded', ended ms}
--   {'duplicate', state, holder, ms until it is worth asking again}
--
-- Atomic, because the new generation makes every older delivery stale, and that
-- must not happen under an attempt. Safe to run twice by the same owner. From
-- scratch means a new epoch, whose stamp no older snapshot or step carries; they
-- are not deleted, since the enqueue that follows may fail and be taken back.
local f = redis.call('HMGET', KEYS[2], 'state', 'fp', 'gen', 'process', 'ended', 'epoch', 'attempt', 'crashes', 'reason', 'prev')
local state, gen = f[1], tonumber(f[3] or '0')
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] and f[10] then
  return {'reserved', gen, f[10]}
end
if redis.call('EXISTS', KEYS[3]) == 1 then
  return {'duplicate', 'running', f[4] or '', math.max(0, redis.call('PTTL', KEYS[3]))}
end
if state == 'succeeded' then
  return {'succeeded', tonumber(f[5] or '0')}
end
if holder and state ~= 'failed' then -- what it kept away has become a task, and an outcome
  return {'duplicate', 'queued', '', math.max(0, redis.call('PTTL', KEYS[1]))}
end
if ARGV[5] == '0' and f[2] and f[2] ~= ARGV[3] then
  return {'mismatch', state or 'failed'}
end
local prev = cjson.encode({'state', state or 'failed', 'fp', f[2] or ARGV[3], 'gen', f[3] or '1', 'epoch', f[6] or '1',
  'attempt', f[7] or '0', 'crashes', f[8] or '0', 'reason', f[9] or ''})
gen = math.max(gen, tonumber(ARGV[6]), 1) + 1
local epoch = tonumber(f[6] or '1')
if ARGV[5] == '1' then
  epoch = gen
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('HSET', KEYS[2], 'state', 'queued', 'fp', ARGV[3], 'gen', gen, 'epoch', epoch, 'attempt', 0, 'crashes', 0,
  'reason', '', 'by', ARGV[1], 'prev', prev)
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return {'reserved', gen, prev}
