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
local f = redis.call('HMGET', KEYS[2], 'state', 'process', 'token', 'gen', 'attempt', 'max_retry', 'retried', 'used',
  'delivery', 'queue', 'type', 'timeout', 'fp', 'reason', 'payload', 'owner', 'retry_at', 'claim', 'claim_by', 'claim_token')
local state, holder = f[1], redis.call('GET', KEYS[1])
if holder and ARGV[1] ~= '' and state == 'running' and f[2] == ARGV[1] and f[16] == holder then
  redis.call('DEL', KEYS[1])
  holder = false
end
if holder then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 then -- no lease lives for ever, whoever took its TTL away
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
    left = tonumber(ARGV[4])
  end
  return {'held', f[2] or '', left}
end
if state ~= 'running' and state ~= 'retrying' then
  return {'settled'}
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local due = tonumber(f[17] or '0')
if state == 'retrying' and due > now then
  return {'resting', due - now}
end
local ends = tonumber(f[18] or '0') + tonumber(ARGV[3])
if f[19] and f[19] ~= ARGV[2] and f[20] == f[3] and ends > now then -- one for an earlier attempt is over
  return {'claimed', ends - now}
end
redis.call('HSET', KEYS[2], 'claim', now, 'claim_by', ARGV[2], 'claim_token', f[3] or '')
local r = {}
for i = 1, 15 do
  r[i] = f[i] or ''
end
r[15] = f[15]
return r
