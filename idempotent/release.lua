-- release ends a reservation that did not surely become a task.
--
-- KEYS  1 guard  2 run record  3 void  [4 runs that wait]
-- ARGV  1 owner  2 '1' takes the record back to what it was, '0' leaves it queued,
--       because a task may exist and its key must not become free  3 retention ms
--       4 ms for which a call of this owner that is still on its way shall do
--       nothing, 0 when all were answered  5 index member  6 ms until a recoverer looks
-- returns 2 released, and the run goes on as what it was  1 released
--         0 not ours any more
--
-- Atomic, because between the look and the removal another could reserve it. Safe
-- to run twice. A record that an attempt has already taken over stays. A run that was
-- under way before may have been looked at meanwhile, and called queued: it is indexed anew.
if ARGV[4] ~= '0' then
  redis.call('SET', KEYS[3], '1', 'PX', ARGV[4])
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
local f = redis.call('HMGET', KEYS[2], 'state', 'by', 'prev')
if ARGV[2] == '1' and f[1] == 'queued' and f[2] == ARGV[1] then
  if (f[3] or '') == '' then
    redis.call('DEL', KEYS[2])
  else
    local old = cjson.decode(f[3])
    redis.call('HDEL', KEYS[2], 'by', 'prev', 'epoch', 'queue')
    for i = 1, #old, 2 do
      redis.call('HSET', KEYS[2], old[i], old[i + 1])
    end
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
    local state = redis.call('HGET', KEYS[2], 'state')
    if state == 'running' or state == 'retrying' then
      if KEYS[4] then
        local t = redis.call('TIME')
        redis.call('ZADD', KEYS[4], tonumber(t[1]) * 1000 + tonumber(ARGV[6]), ARGV[5])
        redis.call('PEXPIRE', KEYS[4], ARGV[3])
      end
      return 2
    end
  end
end
return 1
