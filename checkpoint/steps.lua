-- KEYS: 1 lease, 2 steps of the phase
-- ARGV: 1 owner, "" for a run without a lease; 2 basis; 3 bytes of results after which
--       the rest is left out; 4... the steps to return, without any all
-- Returns {0} when another holds the lease, {1} when there are no steps under this
-- basis, else {1, {step, result, step, result, ...}, {steps left out, ...}}.
-- Atomic, so that the steps are those of the basis that was checked.
local holder = redis.call('GET', KEYS[1])
if (holder or '') ~= ARGV[1] then
  return {0}
end
if redis.call('HGET', KEYS[2], '') ~= ARGV[2] then
  return {1}
end
local names = {}
for i = 4, #ARGV do
  names[#names + 1] = ARGV[i]
end
if #names == 0 then
  names = redis.call('HKEYS', KEYS[2])
end
local found, rest, bytes = {}, {}, 0
for _, name in ipairs(names) do
  if name ~= '' then -- that is the basis
    local n = redis.call('HSTRLEN', KEYS[2], name)
    if bytes > 0 and bytes + n > tonumber(ARGV[3]) then
      rest[#rest + 1] = name
    else
      local result = redis.call('HGET', KEYS[2], name)
      if result then
        found[#found + 1] = name
        found[#found + 1] = result
        bytes = bytes + n
      end
    end
  end
end
return {1, found, rest}
