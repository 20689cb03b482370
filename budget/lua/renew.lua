-- Prolong all leases of a worker and revise their reservations; tell it which jobs are no longer its own.
-- A job that is neither done nor leased is leased anew: a Redis that was away costs nobody an answer.
-- KEYS: run:seen, a block for each dataset
-- ARGV: worker, lease_ms, count, then for each job: dataset index, job, token, reserved, bucket, suspect, adopted
-- RETURNS: for each job 0 (held), 1 (done) or 2 (taken)

local worker, lease_ms, count = ARGV[1], int(ARGV[2]), int(ARGV[3])
local now = now_ms()
local entries, answers, seen, sets = {}, {}, {}, {}
for i = 1, count do
  local at = 3 + (i - 1) * 7
  local index = int(ARGV[at + 1])
  if not sets[index] then
    sets[index] = block(2 + index * BLOCK)
    check(sets[index])
  end
  local e = { d = sets[index], job = ARGV[at + 2], token = ARGV[at + 3],
    reserved = int(ARGV[at + 4]), bucket = int(ARGV[at + 5]), suspect = ARGV[at + 6], adopted = ARGV[at + 7] }
  e.lease = parse_lease(redis.call('HGET', e.d.leases, e.job))
  if redis.call('HEXISTS', e.d.done, e.job) == 1 then
    answers[i] = 1
  elseif e.lease and e.lease.token ~= e.token then
    answers[i] = 2
  else
    answers[i] = 0
    e.whole = job_fields(job_key(e.job), 'data')[1]
    -- Named twice, it would be leased and counted twice.
    e.again, seen[e.job] = seen[e.job], true
  end
  entries[i] = e
end

heard(KEYS[1], now, lease_ms)
for i, e in ipairs(entries) do
  if answers[i] ~= 0 or e.again then
    -- Not its own, or done with above.
  elseif e.lease then
    redis.call('ZADD', e.d.expiry, text(now + lease_ms), e.job)
    local moved = e.reserved - e.lease.reserved
    if moved ~= 0 then redis.call('HINCRBY', e.d.hash, 'reserved', text(moved)) end
    if e.bucket ~= e.lease.bucket then
      count_age(e.d, 'f' .. e.lease.bucket, -1)
      count_age(e.d, 'f' .. e.bucket, 1)
    end
    if moved ~= 0 or e.bucket ~= e.lease.bucket then
      e.lease.reserved, e.lease.bucket = e.reserved, e.bucket
      redis.call('HSET', e.d.leases, e.job, pack_lease(e.lease))
    end
  else
    redis.call('SREM', e.d.dropped, e.job)
    take_lease(e.d, e.job, { token = e.token, reserved = e.reserved, start = now, bucket = e.bucket,
      suspect = e.suspect, adopted = e.adopted, worker = worker }, now + lease_ms)
    if e.whole then redis.call('HSET', job_key(e.job), 'status', 'started', 'worker_name', worker) end
  end
end
return answers
