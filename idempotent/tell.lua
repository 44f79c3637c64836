-- tell says who may tell of a run's failure.
--
-- KEYS  1 run record
-- ARGV  1 generation  2 the caller, new for each telling
-- returns 1 the caller, 0 somebody else has, or the run has not failed
--
-- Atomic, because of all that meet a failed run one must tell. Safe to run twice by
-- the same caller.
local f = redis.call('HMGET', KEYS[1], 'state', 'gen', 'told', 'told_by')
if f[1] ~= 'failed' or tonumber(f[2] or '1') ~= tonumber(ARGV[1]) then
  return 0
end
if f[3] == ARGV[1] then
  return f[4] == ARGV[2] and 1 or 0
end
redis.call('HSET', KEYS[1], 'told', ARGV[1], 'told_by', ARGV[2])
return 1
