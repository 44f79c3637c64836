-- release takes a reservation back after an enqueue that failed.
--
-- KEYS  1 guard  2 run record
-- ARGV  1 owner  2 the fields to restore, as JSON, or '' for none  3 retention ms
-- returns 1 released, 0 not ours any more
--
-- Atomic, because between the look and the removal another could reserve it.
-- A record that an attempt has already taken over stays.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
local f = redis.call('HMGET', KEYS[2], 'state', 'by')
if f[1] == 'queued' and f[2] == ARGV[1] then
  if ARGV[2] == '' then
    redis.call('DEL', KEYS[2])
  else
    local old = cjson.decode(ARGV[2])
    redis.call('HDEL', KEYS[2], 'by')
    for i = 1, #old, 2 do
      redis.call('HSET', KEYS[2], old[i], old[i + 1])
    end
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
  end
end
return 1
