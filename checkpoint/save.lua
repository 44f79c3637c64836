-- KEYS: 1 lease, 2 snapshot, 3 steps of the phase that has ended
-- ARGV: 1 owner, "" for a run without a lease; 2 snapshot; 3 its TTL in ms;
--       4 the lease's TTL in ms, unused without a lease
-- Returns 1 when saved, 0 when another holds the lease or nobody does.
-- Atomic, so that no write slips in between the check and the takeover by
-- another attempt. Saving the same again is harmless.
local holder = redis.call('GET', KEYS[1])
if (holder or '') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('UNLINK', KEYS[3])
if holder then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return 1
