-- KEYS: 1 lease, 2 snapshot, 3... steps
-- ARGV: 1 owner, "" for a run without a lease
-- Returns 1 when cleared, 0 when another holds the lease or nobody does.
-- Atomic, so that what another attempt has saved since is not dropped.
local holder = redis.call('GET', KEYS[1])
if (holder or '') ~= ARGV[1] then
  return 0
end
redis.call('UNLINK', unpack(KEYS, 2))
return 1
