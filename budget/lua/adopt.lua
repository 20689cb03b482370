-- A stock RQ worker has popped this job: lease it, or say why not.
-- KEYS: run, run:ready, a block, rq:job:<job>, then spent and hash of every dataset
-- ARGV: job, token, worker, lease_ms, admission, reservation, all
-- RETURNS: status (ok, notready, wait, complete, done, taken), attempt, failures

local d = block(3)
local job_hash = KEYS[3 + BLOCK]
local job, token, worker, lease_ms, admission = ARGV[1], ARGV[2], ARGV[3], int(ARGV[4]), ARGV[5]

local refusal = other_protocol(KEYS[1])
if refusal then return refusal end
if not is_ready(KEYS[2]) then return { 'notready', 0, 0 } end
if redis.call('HEXISTS', d.done, job) == 1 then return { 'done', 0, 0 } end
local v = job_fields(job_hash, 'data', 'worst', 'attempt', 'failures', 'deaths')
local lease = parse_lease(redis.call('HGET', d.leases, job))
if lease and lease.token == token then return { 'ok', int(v[3]), int(v[4]) } end
if lease then return { 'taken', 0, 0 } end
local f, total = facts(d), totals(KEYS[1], 4 + BLOCK, int(ARGV[7]))
local inflight, worst = redis.call('HLEN', d.leases), worst_of(f, v[2])
check(d)

if complete(f, total) == 'budget' then
  redis.call('SADD', d.dropped, job)
  return { 'complete', 0, 0 }
end
if not admits(f, total, inflight, admission, worst) then
  if admission == 'strict' and is_full(f, total, inflight, worst) then
    redis.call('HSET', d.hash, 'full', '1')
    redis.call('SADD', d.dropped, job)
    return { 'complete', 0, 0 }
  end
  return { 'wait', 0, 0 }
end
local reserved = int(ARGV[6])
if admission == 'strict' then reserved = worst end
local now = now_ms()
take_lease(d, job, { token = token, reserved = reserved, start = now, bucket = 0,
  suspect = int(v[5]) >= 2 and '1' or '0', adopted = '1', worker = worker }, now + lease_ms)
if v[1] then redis.call('HSET', job_hash, 'attempt', text(int(v[3]) + 1)) end
return { 'ok', int(v[3]) + 1, int(v[4]) }
