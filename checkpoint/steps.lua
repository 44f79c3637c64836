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
local found, rest, bytes, most = {}, {}, 0, tonumber(ARGV[3])
for _, name in ipairs(names) do
  local result = name ~= '' and bytes < most and redis.call('HGET', KEYS[2], name) -- '' is the basis
  if result then
    found[#found + 1] = name
    found[#found + 1] = result
    bytes = bytes + #result
  elseif name ~= '' and bytes >= most then
    rest[#rest + 1] = name
  end
end
return {1, found, rest}
