-- Queue prompts that are neither done, nor leased, nor queued, as whole RQ jobs; refused once the dataset is complete.
-- `everything` queues those whose hash says queued too; it counts only while queue, leases and RQ's intermediate
-- list are empty, when such a hash is a job that got lost. The call that ends a pass which queued nothing sets exhausted.
-- KEYS: run, run:ready, run:seen, rq:queues, a block, rq:job:<job> of each, then spent and hash of every dataset
-- ARGV: jobs, all, everything, queued in the pass that ends here (or -1), enqueued_at, lease_ms, dataset, inputs (or -1), then for each job: job, data, worst, description
-- RETURNS: status (ok, notready, complete, exhausted), jobs queued, jobs in the queue

local jobs, all, everything, pass = int(ARGV[1]), int(ARGV[2]), ARGV[3] == '1', int(ARGV[4])
local enqueued_at, lease_ms, dataset, inputs = ARGV[5], int(ARGV[6]), ARGV[7], int(ARGV[8])
local d = block(5)
local first_job = 5 + BLOCK

local refusal = other_protocol(KEYS[1])
if refusal then return refusal end
if not is_ready(KEYS[2]) then return { 'notready', 0, redis.call('LLEN', d.queue) } end
local f, total = facts(d), totals(KEYS[1], first_job + jobs, all)
f.exhausted = false
local queued, leased = redis.call('LLEN', d.queue), redis.call('HLEN', d.leases)
local idle = queued == 0 and leased == 0 and redis.call('LLEN', d.intermediate) == 0
everything = everything and idle
local is_complete = complete(f, total)
redis.call('SCARD', KEYS[4])
local listed = redis.call('SCARD', d.dropped) + redis.call('ZCARD', d.failed) + redis.call('ZCARD', d.canceled)
local worst_known = f.worst

-- Each call costs Redis about a microsecond, so a job is asked and told only what can matter to it.
local plan, seen, worst_case, ids = {}, {}, worst_known, {}
for i = 1, is_complete and 0 or jobs do
  local at = 8 + (i - 1) * 4
  local job, job_hash = ARGV[at + 1], KEYS[first_job + i - 1]
  if not seen[job] and redis.call('HEXISTS', d.done, job) == 0
    and (leased == 0 or redis.call('HEXISTS', d.leases, job) == 0) then
    local there = redis.call('EXISTS', job_hash) == 1
    local v = there and job_fields(job_hash, 'data', 'status', 'attempt', 'failures', 'deaths', 'others', 'beside') or {}
    if everything or not (v[1] and v[2] == 'queued') then
      seen[job] = true
      worst_case = math.max(worst_case, int(ARGV[at + 3]))
      ids[#ids + 1] = job
      plan[#plan + 1] = { job = job, key = job_hash, there = there, data = ARGV[at + 2], worst = ARGV[at + 3], about = ARGV[at + 4],
        attempt = int(v[3]), failures = int(v[4]), deaths = int(v[5]), others = int(v[6]), beside = int(v[7]) }
    end
  end
end

-- First, because it needs memory: after a command that needs none, Redis lets a script grow beyond maxmemory.
if not is_complete and jobs > 0 then redis.call('SADD', KEYS[4], d.queue) end
heard(KEYS[3], now_ms(), lease_ms)
if inputs >= 0 then redis.call('HSET', d.hash, 'inputs', text(inputs)) end
if is_complete then return { 'complete', 0, queued } end
for _, p in ipairs(plan) do
  if p.there then redis.call('DEL', p.key) end
  redis.call('HSET', p.key, 'data', p.data, 'origin', dataset, 'status', 'queued', 'description', p.about,
    'created_at', enqueued_at, 'enqueued_at', enqueued_at, 'timeout', '-1', 'result_ttl', '0', 'worst', p.worst,
    'attempt', text(p.attempt), 'failures', text(p.failures), 'deaths', text(p.deaths))
  if p.others ~= 0 or p.beside ~= 0 then note_death(p.key, p) end
  if listed > 0 then forget_registries(d, p.job) end  -- `rq requeue --all` would queue a failed one twice
end
if #ids > 0 then redis.call('RPUSH', d.queue, unpack(ids)) end
if worst_case > worst_known then redis.call('HSET', d.hash, 'worst', text(worst_case)) end
if #plan > 0 then
  redis.call('HDEL', d.hash, 'exhausted')
elseif pass == 0 and idle then
  redis.call('HSET', d.hash, 'exhausted', '1')
  return { 'exhausted', 0, queued }
end
return { 'ok', #plan, queued + #plan }
