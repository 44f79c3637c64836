-- Add to the sums of a ledger, once.
--
-- KEYS[1] book  KEYS[2] once
-- ARGV[1] ms the book lives  ARGV[2..] field, number pairs
--
-- Returns 1 when added, 0 when this was added before.
--
-- Atomic so that the marker and the sums agree when a lost reply makes the
-- client send it twice.
if not redis.call('SET', KEYS[2], '1', 'PX', 60000, 'NX') then return 0 end
for i = 2, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
