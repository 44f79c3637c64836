-- End the lease and the in-flight record of a call that left nothing to store.
--
-- KEYS[1] lease  KEYS[2] flights  KEYS[3] book, absent when counted elsewhere
-- (see begin.lua)
-- ARGV[1] owner  ARGV[2] call id  ARGV[3] ms the book lives
-- ARGV[4..] name, number pairs to count
--
-- Returns 1 when they were the owner's, else 0.
--
-- Atomic so that what was spent is counted exactly when the record that says
-- "maybe paid" goes. Twice by one owner: the record is gone, nothing is counted.
local owner = ARGV[1]
if redis.call('GET', KEYS[1]) == owner then redis.call('DEL', KEYS[1]) end
local flight = redis.call('HGET', KEYS[2], ARGV[2])
if not flight or string.sub(flight, 1, #owner + 1) ~= owner .. ' ' then return 0 end
redis.call('HDEL', KEYS[2], ARGV[2])
if KEYS[3] and #ARGV > 3 then
  for i = 4, #ARGV, 2 do redis.call('HINCRBY', KEYS[3], ARGV[i], ARGV[i + 1]) end
  redis.call('PEXPIRE', KEYS[3], ARGV[3])
end
return 1
