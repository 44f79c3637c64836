-- begin starts an attempt of a run, or says why none may start now.
--
-- KEYS  1 lock  2 run record  3 snapshot  4 guard of the producer  5 void
--       [6 leases of this process  7 processes  8 present]
-- ARGV  1 owner  2 lease TTL ms  3 retention ms  4 generation  5 fingerprint
--       6 crashes allowed  7 process  8 index member
--       9 task ID  10 queue  11 task type  12 payload  13 max retry
--       14 timeout ms  15 retries used  16 '1' to keep the payload, '0' not
-- returns
--   {'begun', token, attempt, crashes, stamp, snapshot or false}
--   {'held', process, lease ms left, token}   another attempt holds the lease
--   {'resting', ms, token}                    the next attempt is due later, and this is not
--                                             the delivery that was told when
--   {'succeeded', token, result or false}     terminal: nothing to do
--   {'failed', token, reason, attempt, '1' when somebody was told, else '0'}
--                                             terminal: only Rerun starts it again
--   {'stale', generation, ms, fingerprint}    the delivery is of an older generation;
--                                             ms -1, or when the newer has not begun
--                                             what is left of its producer's guard
--   {'poisoned', token, crashes}              one crash too many: the run is failed now
--   {'over'}                                  this owner's attempt has ended already: a
--                                             call that came late, nobody waits for it
--
-- Atomic, because "is it done", "is it held" and "it is mine" must be one
-- decision, and because the snapshot must be the one this lease protects.
-- Safe to run twice: an owner that already holds the lease gets its token again,
-- and one that found a poison pill finds it again.
--
-- An attempt that died without an outcome is a crash. Those that saved a phase before
-- do not add up: what kills its worker for ever gets nowhere.
local names = {'state', 'token', 'gen', 'epoch', 'attempt', 'crashes', 'process', 'result', 'reason', 'fp', 'from', 'claim_by',
  'told', 'owner', 'delivery', 'retry_at'}
local run = {}
for i, v in ipairs(redis.call('HMGET', KEYS[2], unpack(names))) do
  run[names[i]] = v
end
local state, token, gen = run.state, tonumber(run.token or '0'), tonumber(run.gen or '0')
local mine = tonumber(ARGV[4])
local holder = redis.call('GET', KEYS[1])

if holder ~= ARGV[1] and (run.owner == ARGV[1] or redis.call('EXISTS', KEYS[5]) == 1) then
  return {'over'}
end
if mine < gen then
  return {'stale', gen, state == 'queued' and math.max(0, redis.call('PTTL', KEYS[4])) or -1, run.fp or ''}
end
if holder and holder ~= ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 then -- no lease lives for ever, whoever took its TTL away
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    left = tonumber(ARGV[2])
  end
  return {'held', run.process or '', left, string.format('%.0f', token)}
end
local attempt, crashes = tonumber(run.attempt or '0'), tonumber(run.crashes or '0')
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
-- A record that was forgotten must not find what its run once checkpointed.
local epoch = tonumber(run.epoch or now)
local snapshot = redis.call('GET', KEYS[3])
if not holder then
  if mine > gen and gen > 0 and state ~= 'succeeded' then -- this delivery outran what Rerun wrote
    state, attempt, crashes = false, 0, 0
  end
  if state == 'succeeded' then
    return {'succeeded', string.format('%.0f', token), run.result or false}
  end
  if state == 'failed' and run.claim_by == ARGV[1] then
    return {'poisoned', string.format('%.0f', token), crashes}
  end
  if state == 'failed' then
    return {'failed', string.format('%.0f', token), run.reason or '', attempt, run.told == string.format('%d', gen) and '1' or '0'}
  end
  if state == 'retrying' and run.delivery ~= ARGV[9] then
    -- Early is a second and more: asynq cuts the times of its tasks to whole ones.
    local early = tonumber(run.retry_at or '0') - now / 1000
    if early > 1000 then
      return {'resting', string.format('%.0f', early), string.format('%.0f', token)}
    end
  end
  local from = snapshot and redis.sha1hex(snapshot) or ''
  if state == 'running' then -- it began and nobody wrote how it ended
    crashes = from == (run.from or '') and crashes + 1 or 1
  end
  token = math.max(token + 1, now)
  if crashes > 0 and crashes >= tonumber(ARGV[6]) then
    redis.call('HSET', KEYS[2], 'state', 'failed', 'crashes', crashes, 'token', string.format('%.0f', token), 'claim_by', ARGV[1],
      'reason', 'crashed ' .. crashes .. ' times', 'ended', string.format('%.0f', now / 1000))
    redis.call('HDEL', KEYS[2], 'payload')
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
    return {'poisoned', string.format('%.0f', token), crashes}
  end
  attempt = attempt + 1
  redis.call('HSET', KEYS[2], 'state', 'running', 'token', string.format('%.0f', token), 'gen', mine,
    'epoch', string.format('%.0f', epoch), 'attempt', attempt, 'crashes', crashes, 'owner', ARGV[1], 'process', ARGV[7],
    'fp', ARGV[5], 'from', from, 'began', string.format('%.0f', now / 1000),
    'delivery', ARGV[9], 'queue', ARGV[10], 'type', ARGV[11], 'max_retry', ARGV[13], 'timeout', ARGV[14],
    'retried', ARGV[15])
  if ARGV[16] == '1' then
    redis.call('HSET', KEYS[2], 'payload', ARGV[12])
  else -- not that of another delivery either
    redis.call('HDEL', KEYS[2], 'payload')
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
if KEYS[6] then
  local expiry = math.floor(now / 1000) + tonumber(ARGV[2])
  redis.call('ZADD', KEYS[6], expiry, ARGV[8])
  redis.call('PEXPIRE', KEYS[6], ARGV[3])
  redis.call('ZADD', KEYS[7], expiry, ARGV[7])
  redis.call('PEXPIRE', KEYS[7], ARGV[3])
  if tonumber(redis.call('ZSCORE', KEYS[8], ARGV[7]) or '0') < 0 then -- taken for gone, and lives
    redis.call('ZREM', KEYS[8], ARGV[7])
  end
end
return {'begun', string.format('%.0f', token), attempt, crashes, string.format('%.0f-%s', epoch, ARGV[5]), snapshot}
