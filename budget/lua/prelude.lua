-- Shared by every verb; the loader puts it in front of each file, after what Python says once: PROTOCOL, EDGES (of
-- the buckets), FEWEST_DEATHS and MOST_DEATHS.
-- Rules: Redis TIME only, integers only, all reads and type checks before the first write, no scan of a queue.

local BLOCK = 13

-- The keys of one dataset, in the order of budget.keys.block().
local function block(first)
  return {
    queue = KEYS[first], intermediate = KEYS[first + 1], started = KEYS[first + 2], failed = KEYS[first + 3],
    canceled = KEYS[first + 4], hash = KEYS[first + 5], spent = KEYS[first + 6], done = KEYS[first + 7],
    dropped = KEYS[first + 8], expiry = KEYS[first + 9], leases = KEYS[first + 10], ages = KEYS[first + 11],
    results = KEYS[first + 12],
  }
end

local function job_key(job) return 'rq:job:' .. job end

-- A number in a job's hash, which others may write to: what is none counts as 0.
local function int(value) return tonumber(value or 0) or 0 end

-- A number of ours: nothing is decided by, or added to, what is none. Beyond 2^53 a double is not exact.
local function whole(value, name)
  if value and not (string.match(value, '^%-?%d+$') and math.abs(tonumber(value)) <= 9007199254740992) then
    local shown = string.gsub(string.sub(value, 1, 40), '[^%w%p ]', '?')
    error(name .. " holds '" .. shown .. "', which is no whole number")
  end
  return int(value)
end

local function field(d, name) return 'field ' .. name .. ' of ' .. d.hash end

local function is_hash(key) return redis.call('TYPE', key).ok == 'hash' end

-- Fields of a job's hash. A key of another type in its place is as hollow as a hash without data.
local function job_fields(key, ...)
  return is_hash(key) and redis.call('HMGET', key, ...) or {}
end

-- Whole numbers as text, also beyond 1e14. Adding 0 turns -0, which Redis takes for no number, into 0.
local function text(number) return string.format('%.0f', number + 0) end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The run_id of this very server: a client's own idea of it is stale after a silent reconnect.
local function is_ready(key)
  local ready = redis.call('GET', key)
  return ready and ready == string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

-- The refusal of a run that another version of Tokenmill started, or nil.
local function other_protocol(run)
  local v = redis.call('HMGET', run, 'protocol', 'release')
  if not v[1] or v[1] == PROTOCOL or not string.match(v[1], '^%d+$') then return nil end
  return redis.error_reply('OTHERPROTOCOL ' .. v[1] .. ' ' .. (v[2] or 'unknown'))
end

-- Since when this Redis has been heard without a gap (ms). Absent: from now on.
local function heard(key, now, lease_ms)
  local since = redis.call('GET', key)
  local half = math.max(1, math.floor(lease_ms / 2))
  if since then
    redis.call('PEXPIRE', key, half)
    return int(since)
  end
  redis.call('SET', key, text(now), 'PX', half)
  return now
end

-- Index of the bucket that a length or age of so many tokens falls into: how many edges it has reached.
local function bucket(tokens)
  local low, high = 0, #EDGES
  while low < high do
    local middle = math.floor((low + high) / 2)
    if EDGES[middle + 1] <= tokens then low = middle + 1 else high = middle end
  end
  return low
end

local function pack_lease(lease)
  return table.concat({ lease.token, text(lease.reserved), text(lease.start), lease.bucket, lease.suspect,
    lease.adopted, lease.worker }, ' ')
end

local function parse_lease(value)
  if not value then return nil end
  local token, reserved, start, age, suspect, adopted, worker =
    string.match(value, '^(%S+) (%d+) (%d+) (%d+) (%d) (%d) (.*)$')
  if not token then return nil end
  return { token = token, reserved = int(reserved), start = int(start), bucket = int(age), suspect = suspect,
    adopted = adopted, worker = worker }
end

-- What decides whether a dataset goes on. `total` holds the same sums over all of the run's datasets.
local function facts(d)
  local v = redis.call('HMGET', d.hash, 'cap', 'reserved', 'exhausted', 'full', 'max_samples', 'committed', 'worst')
  local cap = v[1]
  return { cap = (cap and cap ~= 'none') and whole(cap, field(d, 'cap')) or nil, open = cap and true or false,
    reserved = whole(v[2], field(d, 'reserved')), exhausted = v[3] == '1', full = v[4] == '1',
    max_samples = v[5] and whole(v[5], field(d, 'max_samples')) or nil, committed = whole(v[6], field(d, 'committed')),
    worst = whole(v[7], field(d, 'worst')), spent = whole(redis.call('GET', d.spent), d.spent) }
end

-- A job's worst case; one that names none (another hand queued it) counts as the dataset's longest.
local function worst_of(f, value)
  local worst = int(value)
  return worst > 0 and worst or f.worst
end

-- Reads all that taking or ending a job writes to, so that a key of another type fails before the first write.
local function check(d)
  local fields = { 'reserved', 'committed', 'rejected', 'truncated' }
  for i, value in ipairs(redis.call('HMGET', d.hash, unpack(fields))) do whole(value, field(d, fields[i])) end
  whole(redis.call('GET', d.spent), d.spent)
  redis.call('LLEN', d.queue); redis.call('XLEN', d.results); redis.call('SCARD', d.dropped)
  redis.call('HLEN', d.done); redis.call('HLEN', d.leases); redis.call('HLEN', d.ages); redis.call('ZCARD', d.expiry)
  redis.call('ZCARD', d.started); redis.call('ZCARD', d.failed); redis.call('ZCARD', d.canceled)
end

-- KEYS from `first` on are (spent, hash) of every dataset; without a total cap none are needed.
local function totals(run, first, count)
  local cap = redis.call('HGET', run, 'max_tokens_total')
  local total = { cap = cap and whole(cap, 'field max_tokens_total of ' .. run) or nil, spent = 0, reserved = 0 }
  if total.cap then
    for i = 0, count - 1 do
      local at = first + 2 * i
      local one = { spent = KEYS[at], hash = KEYS[at + 1] }
      total.spent = total.spent + whole(redis.call('GET', one.spent), one.spent)
      total.reserved = total.reserved + whole(redis.call('HGET', one.hash, 'reserved'), field(one, 'reserved'))
    end
  end
  return total
end

-- Why the dataset is complete ('budget' or 'prompts'), or false. budget.rules.complete() is its twin for Python.
local function complete(f, total)
  if f.cap and f.spent >= f.cap then return 'budget' end
  if total.cap and total.spent >= total.cap then return 'budget' end
  if f.max_samples and f.committed >= f.max_samples then return 'budget' end
  if f.full then return 'budget' end
  if f.exhausted then return 'prompts' end
  return false
end

-- The gate: may one more job be taken, with `inflight` jobs leased? Under strict the job's worst case must fit.
local function admits(f, total, inflight, admission, worst)
  if not f.open then return false end
  if f.max_samples and f.committed + inflight >= f.max_samples then return false end
  if admission == 'strict' then
    return (not f.cap or f.spent + f.reserved + worst <= f.cap)
      and (not total.cap or total.spent + total.reserved + worst <= total.cap)
  end
  return (not f.cap or (f.spent < f.cap and (inflight == 0 or f.spent + f.reserved < f.cap)))
    and (not total.cap or (total.spent < total.cap
      and (total.reserved == 0 or total.spent + total.reserved < total.cap)))
end

-- Under strict, with nothing in flight that could still make room: this job's worst case fits no more.
local function is_full(f, total, inflight, worst)
  if not f.open or inflight > 0 then return false end
  if f.max_samples and f.committed >= f.max_samples then return false end
  if f.cap and f.spent + worst > f.cap then return true end
  return total.cap and total.reserved == 0 and total.spent + worst > total.cap
end

-- Ages only feed the forecast: a count that is no number begins anew, where an error would leave half a verb behind.
local function count_age(d, name, by)
  local known = redis.call('HGET', d.ages, name)
  if known and not string.match(known, '^%-?%d%d?%d?%d?%d?%d?%d?%d?%d?$') then
    redis.call('HSET', d.ages, name, math.max(0, by))
  else
    redis.call('HINCRBY', d.ages, name, by)
  end
end

local function take_lease(d, job, lease, expires)
  redis.call('HSET', d.leases, job, pack_lease(lease))
  redis.call('ZADD', d.expiry, text(expires), job)
  redis.call('HINCRBY', d.hash, 'reserved', text(lease.reserved))
  count_age(d, 'f' .. lease.bucket, 1)
  -- +inf keeps RQ's own clean-up away from it; `rq info` counts it as executing.
  redis.call('ZADD', d.started, '+inf', job .. ':' .. lease.token)
end

local function free_lease(d, job, lease)
  redis.call('HDEL', d.leases, job)
  redis.call('ZREM', d.expiry, job)
  redis.call('HINCRBY', d.hash, 'reserved', text(0 - lease.reserved))  -- not -0, which is no integer
  count_age(d, 'f' .. lease.bucket, -1)
  redis.call('ZREM', d.started, job .. ':' .. lease.token)
end

-- Whatever is still listed of a job that has ended here, or begins anew.
local function forget_registries(d, job)
  redis.call('ZREM', d.failed, job)
  redis.call('ZREM', d.canceled, job)
  redis.call('SREM', d.dropped, job)
end

-- How many workers and servers of this run have died so far. Adding to it comes before any job is charged.
local function deaths_of(run) return whole(redis.call('HGET', run, 'deaths'), 'field deaths of ' .. run) end

-- budget.rules.is_poison() is its twin for Python.
local function is_poison(deaths, others) return deaths >= math.min(MOST_DEATHS, FEWEST_DEATHS + math.max(0, others - 1)) end

-- Charge a job with one death of the `all` in this run: { deaths, others } as its hash keeps them, and whether it is
-- poison. `others` are those that it had no part in until it became a suspect.
local function one_more_death(deaths, others, all)
  deaths = deaths + 1
  if deaths <= 2 then others = all - deaths end
  return { deaths = deaths, others = others, poison = is_poison(deaths, all - deaths - others) }
end

-- What dying beside a suspect does to a job that is none: { deaths, others, beside }. The death is the suspect's; but a
-- job that dies beside one again, or has died before, is charged as well: else one that ends servers could for ever ride
-- beside innocent suspects, who would pay for it.
local function died_beside(deaths, others, beside, all)
  if deaths == 0 and beside == 0 then return { deaths = 0, others = 0, beside = 1 } end
  local death = one_more_death(deaths, others, all)
  death.beside = beside
  return death
end

-- Write what a death did to a job that goes on.
local function note_death(job_hash, death)
  redis.call('HSET', job_hash, 'deaths', text(death.deaths), 'others', text(death.others))
  if death.beside then redis.call('HSET', job_hash, 'beside', text(death.beside)) end
end

-- End a job as poison. Its data say which prompt it was.
local function end_as_poison(d, job, data, deaths, attempts)
  redis.call('XADD', d.results, '*', 'kind', 'poison', 'job', job, 'data', data, 'deaths', deaths, 'attempts', attempts)
  redis.call('HSET', d.done, job, 0)
  redis.call('HINCRBY', d.hash, 'rejected', 1)
  redis.call('UNLINK', job_key(job))
end
