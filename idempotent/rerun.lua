-- rerun opens a new generation of a run that is not running.
--
-- KEYS  1 guard  2 run record  3 lock  4 void
-- ARGV  1 owner  2 guard window ms  3 fingerprint  4 retention ms  5 queue
--       6 '1' from scratch, '0' resume  7 a generation it must exceed
-- returns
--   {'reserved', generation}
--   {'mismatch', state}
--   {'succeeded', ended ms}
--   {'duplicate', state, holder, ms until it is worth asking again}
--   {'void'}                                      release was first: nothing is done
--
-- Atomic, because the new generation makes every older delivery stale, and that
-- must not happen under an attempt. Safe to run twice by the same owner, who may
-- also ask for a later generation than the one it has. What was before is kept in
-- 'prev', for release; '' is no record. From scratch means a new epoch, whose
-- stamp no older snapshot or step carries; they are not deleted, since the enqueue
-- that follows may fail and be taken back.
if redis.call('EXISTS', KEYS[4]) == 1 then
  return {'void'}
end
local f = redis.call('HMGET', KEYS[2], 'state', 'fp', 'gen', 'process', 'ended', 'epoch', 'attempt', 'crashes', 'reason',
  'queue', 'by')
local state, gen, after = f[1], tonumber(f[3] or '0'), tonumber(ARGV[7])
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] and f[11] == holder then
  if gen <= after and state == 'queued' then
    gen = after + 1
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    redis.call('HSET', KEYS[2], 'gen', gen)
  end
  return {'reserved', gen}
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
if ARGV[6] == '0' and f[2] and f[2] ~= ARGV[3] then
  return {'mismatch', state or 'failed'}
end
local prev = ''
if state then
  local list = {'state', state, 'fp', f[2] or ARGV[3], 'gen', f[3] or '1', 'attempt', f[7] or '0', 'crashes', f[8] or '0',
    'reason', f[9] or ''}
  for _, field in ipairs({{'epoch', f[6]}, {'queue', f[10]}}) do
    if field[2] then
      list[#list + 1] = field[1]
      list[#list + 1] = field[2]
    end
  end
  prev = cjson.encode(list)
end
gen = math.max(gen, after, 1) + 1
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('HSET', KEYS[2], 'state', 'queued', 'fp', ARGV[3], 'gen', gen, 'attempt', 0, 'crashes', 0, 'reason', '',
  'queue', ARGV[5], 'by', ARGV[1], 'prev', prev)
if ARGV[6] == '1' then
  local t = redis.call('TIME')
  redis.call('HSET', KEYS[2], 'epoch', string.format('%.0f', tonumber(t[1]) * 1000000 + tonumber(t[2])))
end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return {'reserved', gen}
