-- Take up to k jobs, round-robin over the datasets whose gate is open, and reserve their tokens.
-- A repeated nonce is answered with the same jobs (those of them still held), so a re-sent command takes nothing twice.
-- KEYS: run, run:ready, run:seen, claim:<worker>, rq:suspended, a block for each served dataset, then spent and hash of every dataset
-- ARGV: nonce, worker, k, lease_ms, admission, holds_suspect, max_waiting, started_at, served, all, then the reservation of each served dataset
-- RETURNS: status (ok, notready, suspended), jobs as {dataset index, job, token, data, attempt, failures, deaths}, {state, queued} of each served dataset, and how many of their results wait for the collector

local nonce, worker, k, lease_ms, admission = ARGV[1], ARGV[2], int(ARGV[3]), int(ARGV[4]), ARGV[5]
local holds_suspect, max_waiting, started_at = ARGV[6] == '1', int(ARGV[7]), ARGV[8]
local served, all = int(ARGV[9]), int(ARGV[10])

local function answer(i, job, token)
  local v = job_fields(job_key(job), 'data', 'attempt', 'failures', 'deaths')
  return { i, job, token, v[1] or '', int(v[2]), int(v[3]), int(v[4]) }
end

local refusal = other_protocol(KEYS[1])
if refusal then return refusal end
if not is_ready(KEYS[2]) then return { 'notready', {}, {}, 0 } end

local before = redis.call('GET', KEYS[4])
if before then
  local known = cmsgpack.unpack(before)
  if known[1] == nonce then
    local jobs = {}
    for _, taken in ipairs(known[2]) do
      local lease = parse_lease(redis.call('HGET', block(6 + taken[1] * BLOCK).leases, taken[2]))
      if lease and lease.token == taken[3] then jobs[#jobs + 1] = answer(taken[1], taken[2], taken[3]) end
    end
    return { 'ok', jobs, known[3], known[4] }
  end
end
if redis.call('EXISTS', KEYS[5]) == 1 then return { 'suspended', {}, {}, 0 } end

local now = now_ms()
local total = totals(KEYS[1], 6 + served * BLOCK, all)
local sets, waiting = {}, 0
for i = 1, served do
  local d = block(6 + (i - 1) * BLOCK)
  local f = facts(d)
  f.d, f.cursor, f.looked, f.chunk, f.plan, f.later, f.stale = d, 0, 0, {}, {}, {}, {}
  f.inflight, f.queued = redis.call('HLEN', d.leases), redis.call('LLEN', d.queue)
  check(d)
  waiting = waiting + redis.call('XLEN', d.results)
  f.reservation = int(ARGV[10 + i])
  f.state = 'open'
  if not f.open then f.state = 'closed' elseif complete(f, total) == 'budget' or (f.exhausted and f.queued == 0) then f.state = 'complete' end
  sets[i] = f
end

-- The next id of the queue that can be taken, without taking it. Passes over done, leased and hollow ones.
local function peek(f)
  while f.looked < 1000 do
    local at = f.cursor - (f.base or 0) + 1
    if at > #f.chunk then
      f.base, f.chunk = f.cursor, redis.call('LRANGE', f.d.queue, f.cursor, f.cursor + 63)
      at = 1
      if #f.chunk == 0 then return nil end
    end
    local job = f.chunk[at]
    f.looked = f.looked + 1
    local is_done = redis.call('HEXISTS', f.d.done, job) == 1
    if not is_done and not f.stale[job] and redis.call('HEXISTS', f.d.leases, job) == 0 then
      local v = job_fields(job_key(job), 'data', 'worst', 'deaths', 'attempt')
      if v[1] then return { job = job, worst = worst_of(f, v[2]), deaths = int(v[3]), attempt = int(v[4]) } end
    end
    if is_done then f.ended = f.ended or {}; f.ended[#f.ended + 1] = job end
    f.cursor = f.cursor + 1
  end
  f.state = 'open'
  return nil
end

local function next_job(f)
  local head = peek(f)
  while head and head.deaths >= 2 and holds_suspect do
    f.cursor = f.cursor + 1
    f.later[#f.later + 1], f.stale[head.job] = head.job, true
    head = peek(f)
  end
  return head
end

local count, progressed = 0, waiting < max_waiting
if not progressed then
  for _, f in ipairs(sets) do if f.state == 'open' then f.state = 'backlog' end end
end
while count < k and progressed do
  progressed = false
  for _, f in ipairs(sets) do
    if count < k and f.state == 'open' then
      local head = next_job(f)
      if not head then
        if f.looked < 1000 then f.state = 'empty' end
      elseif not admits(f, total, f.inflight, admission, head.worst) then
        f.state = 'gated'
        f.fill = admission == 'strict' and is_full(f, total, f.inflight, head.worst)
      else
        local reserved = f.reservation
        if admission == 'strict' then reserved = head.worst end
        local suspect = head.deaths >= 2
        holds_suspect = holds_suspect or suspect
        f.cursor, f.stale[head.job] = f.cursor + 1, true
        f.inflight, f.reserved = f.inflight + 1, f.reserved + reserved
        total.reserved = total.reserved + reserved
        count, progressed = count + 1, true
        f.plan[#f.plan + 1] = { job = head.job, token = nonce .. '-' .. count, reserved = reserved,
          attempt = head.attempt + 1, suspect = suspect and '1' or '0' }
      end
    end
  end
end

-- From here on it only writes.
local jobs, taken, states = {}, {}, {}
for i, f in ipairs(sets) do
  if f.cursor > 0 then redis.call('LPOP', f.d.queue, f.cursor) end
  for _, job in ipairs(f.ended or {}) do redis.call('UNLINK', job_key(job)) end
  for _, job in ipairs(f.later) do redis.call('RPUSH', f.d.queue, job) end
  if f.fill then
    redis.call('HSET', f.d.hash, 'full', '1')
    f.state = 'complete'
  end
  for _, p in ipairs(f.plan) do
    take_lease(f.d, p.job, { token = p.token, reserved = p.reserved, start = now, bucket = 0, suspect = p.suspect,
      adopted = '0', worker = worker }, now + lease_ms)
    redis.call('HSET', job_key(p.job), 'status', 'started', 'worker_name', worker, 'started_at', started_at,
      'attempt', text(p.attempt))
    jobs[#jobs + 1] = answer(i - 1, p.job, p.token)
    taken[#taken + 1] = { i - 1, p.job, p.token }
  end
  states[i] = { f.state, math.max(0, f.queued - f.cursor + #f.later) }
end
redis.call('SET', KEYS[4], cmsgpack.pack({ nonce, taken, states, waiting }), 'PX', lease_ms)
return { 'ok', jobs, states, waiting }
