-- recover_note keeps the index of leases beside the scripts that take, extend and
-- release them, where those cannot: on Redis Cluster it is in another slot.
--
-- KEYS  1 leases of this process  2 processes  3 runs that wait  4 present
-- ARGV  1 process  2 retention ms  then for each run: member, kind, ms
--       kind 'lease': held for another ms; 'wait': to be looked at in ms; 'over'
-- returns 1
--
-- Atomic only in itself. An entry that is wrong costs a look of a recoverer, and
-- the heartbeat repeats one that is missing.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
for i = 3, #ARGV, 3 do
  local member, kind, at = ARGV[i], ARGV[i + 1], now + tonumber(ARGV[i + 2])
  if kind == 'lease' then
    redis.call('ZADD', KEYS[1], at, member)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    redis.call('ZADD', KEYS[2], at, ARGV[1])
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
    if tonumber(redis.call('ZSCORE', KEYS[4], ARGV[1]) or '0') < 0 then -- taken for gone, and lives
      redis.call('ZREM', KEYS[4], ARGV[1])
    end
  else
    redis.call('ZREM', KEYS[1], member)
    if kind == 'wait' then
      redis.call('ZADD', KEYS[3], at, member)
      local kept = tonumber(ARGV[2]) + tonumber(ARGV[i + 2]) -- the index must outlive the wait
      if redis.call('PTTL', KEYS[3]) < kept then
        redis.call('PEXPIRE', KEYS[3], kept)
      end
    end
  end
end
return 1
