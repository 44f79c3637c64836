-- Store an answer, count it, and end the call's lease and in-flight record.
--
-- KEYS[1] answer  KEYS[2] lease  KEYS[3] flights  KEYS[4] book, absent when
-- counted elsewhere (see begin.lua)
-- ARGV[1] owner  ARGV[2] call id  ARGV[3] data  ARGV[4] ms the answer lives
-- ARGV[5] ms the book lives  ARGV[6..] name, number pairs of what it cost
--
-- Returns 1 when it is stored, 0 when the slot is another's by now.
--
-- Atomic so that an answer is stored and counted, or neither. Twice by one
-- owner: the answer names the owner, and is not counted again. An owner whose
-- lease expired may still store while nobody came after it.
local owner = ARGV[1]
if redis.call('HGET', KEYS[1], 'b') == owner then return 1 end
local holder = redis.call('GET', KEYS[2])
local flight = redis.call('HGET', KEYS[3], ARGV[2])
local ours = flight and string.sub(flight, 1, #owner + 1) == owner .. ' '
if holder ~= owner then
  if holder or (flight and not ours) then return 0 end
  if not ours and redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
end

redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'd', ARGV[3], 'b', owner, unpack(ARGV, 6))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if holder then redis.call('DEL', KEYS[2]) end
if ours then redis.call('HDEL', KEYS[3], ARGV[2]) end
if KEYS[4] then
  for i = 6, #ARGV, 2 do redis.call('HINCRBY', KEYS[4], 'paid_' .. ARGV[i], ARGV[i + 1]) end
  redis.call('PEXPIRE', KEYS[4], ARGV[5])
end
return 1
