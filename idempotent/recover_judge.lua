-- recover_judge says whether a run needs a delivery, and who may give it one.
--
-- KEYS  1 lock  2 run record
-- ARGV  1 the process that is dead, or '' when none is known to be  2 the caller
--       3 ms for which a claim keeps other recoverers away  4 lease TTL ms
-- returns
--   {'settled'}                    no run, an outcome, or not begun: nothing to do
--   {'held', process, lease ms left}
--   {'resting', ms until the next attempt is due}
--   {'claimed', ms until the claim of another ends}
--   {state, process, token, generation, attempt, max retry, retried, '1' if a retry
--    is used up, delivery, queue, type, timeout ms, fingerprint, reason,
--    payload or false}             running (it died) or retrying: the caller's
--
-- Atomic, because "no lease" and "still running" must hold at once, and because
-- the lease of a dead process may be broken only if it is that process' own. Safe
-- to run twice: a claim of mine is mine.
local names = {'state', 'process', 'token', 'gen', 'attempt', 'max_retry', 'retried', 'used', 'delivery', 'queue', 'type', 'timeout',
  'fp', 'reason', 'payload', 'owner', 'retry_at', 'claim', 'claim_by', 'claim_token'}
local told, run = 15, {} -- the first so many are the answer
local values = redis.call('HMGET', KEYS[2], unpack(names))
for i, v in ipairs(values) do
  run[names[i]] = v
end
local holder = redis.call('GET', KEYS[1])
if holder and ARGV[1] ~= '' and run.state == 'running' and run.process == ARGV[1] and run.owner == holder then
  redis.call('DEL', KEYS[1])
  holder = false
end
if holder then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 then -- no lease lives for ever, whoever took its TTL away
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
    left = tonumber(ARGV[4])
  end
  return {'held', run.process or '', left}
end
if run.state ~= 'running' and run.state ~= 'retrying' then
  return {'settled'}
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local due = tonumber(run.retry_at or '0')
if run.state == 'retrying' and due > now then
  return {'resting', due - now}
end
local ends = tonumber(run.claim or '0') + tonumber(ARGV[3])
if run.claim_by and run.claim_by ~= ARGV[2] and run.claim_token == run.token and ends > now then -- one for an earlier attempt is over
  return {'claimed', ends - now}
end
redis.call('HSET', KEYS[2], 'claim', now, 'claim_by', ARGV[2], 'claim_token', run.token or '')
local r = {}
for i = 1, told do
  r[i] = values[i] or ''
end
r[told] = run.payload -- none is not empty
return r
