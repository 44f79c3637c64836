-- KEYS: 1 lease, 2 steps of the phase
-- ARGV: 1 owner, "" for a run without a lease; 2 basis
-- Returns {0} when another holds the lease, {1} when there are no steps under
-- this basis, else {1, field, value, field, value, ...} with the basis in it.
-- Atomic, so that the steps are those of the basis that was checked.
local holder = redis.call('GET', KEYS[1])
if (holder or '') ~= ARGV[1] then
  return {0}
end
if redis.call('HGET', KEYS[2], '') ~= ARGV[2] then
  return {1}
end
local all = redis.call('HGETALL', KEYS[2])
table.insert(all, 1, 1)
return all
