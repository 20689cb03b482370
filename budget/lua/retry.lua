-- Bring rejected prompts back: the producer's next pass queues them again.
-- KEYS: a block
-- ARGV: for each prompt: job, line
-- RETURNS: prompts brought back

local d = block(1)
local plan = {}
for at = 1, #ARGV, 2 do
  if redis.call('HGET', d.done, ARGV[at]) == '0' then plan[#plan + 1] = at end
end
check(d)

for _, at in ipairs(plan) do
  redis.call('XADD', d.results, '*', 'kind', 'retry', 'job', ARGV[at], 'line', ARGV[at + 1])
  redis.call('HDEL', d.done, ARGV[at])
  redis.call('HINCRBY', d.hash, 'rejected', -1)
end
if #plan > 0 then redis.call('HDEL', d.hash, 'exhausted') end
return #plan
