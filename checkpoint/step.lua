-- KEYS: 1 lease, 2 steps of the phase, 3 snapshot
-- ARGV: 1 owner, "" for a run without a lease; 2 basis; 3 step; 4 result;
--       5 TTL in ms; 6 the lease's TTL in ms, unused without a lease
-- Returns 1 when saved, 0 when another holds the lease or nobody does.
-- Atomic, so that no write slips in between the check and the takeover by
-- another attempt, and no hash is left without a TTL or under two bases.
local holder = redis.call('GET', KEYS[1])
if (holder or '') ~= ARGV[1] then
  return 0
end
local basis = redis.call('HGET', KEYS[2], '')
if basis ~= ARGV[2] then
  if basis then
    redis.call('UNLINK', KEYS[2])
  end
  redis.call('HSET', KEYS[2], '', ARGV[2])
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('PEXPIRE', KEYS[3], ARGV[5])
if holder then
  redis.call('PEXPIRE', KEYS[1], ARGV[6])
end
return 1
