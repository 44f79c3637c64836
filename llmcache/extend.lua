-- Keep the lease of a call alive while the call runs.
--
-- KEYS[1] lease  KEYS[2] flights (see begin.lua)
-- ARGV[1] owner  ARGV[2] lease ms  ARGV[3] call id
--
-- Returns 1 when owner holds the lease, 0 when it is another's or the in-flight
-- record is gone.
--
-- A lease that expired is taken back while the in-flight record still names the
-- owner: nobody came in between, and giving up would only let another pay for
-- the same call. Atomic because another may come between look and write. Twice
-- by one owner is the same.
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
local flight = redis.call('HGET', KEYS[2], ARGV[3])
if not holder and flight and string.sub(flight, 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
return 0
