-- KEYS: 1 lease, 2 snapshot
-- ARGV: 1 owner, "" for a run without a lease
-- Returns {0} when another holds the lease, {1} when there is no snapshot,
-- {1, snapshot} else.
-- Atomic, so that a run without a lease does not start on what another is at.
local holder = redis.call('GET', KEYS[1])
if (holder or '') ~= ARGV[1] then
  return {0}
end
local snapshot = redis.call('GET', KEYS[2])
if snapshot then
  return {1, snapshot}
end
return {1}
