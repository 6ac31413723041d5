
-- Integers are UInt64 throughout: numbers of Lua 5.2 have 53 bits.
local zero, one = UInt64(0), UInt64(1)
local u = {}

function u.n(high, low) return UInt64(low, high) end
function u.b(condition) return condition and one or zero end
function u.t(v) return v ~= zero end
function u.shl(x, y) return y < UInt64(64) and x:lshift(y:tonumber()) or zero end
function u.shr(x, y) return y < UInt64(64) and x:rshift(y:tonumber()) or zero end
function u.low(x, n)
	return n < UInt64(64) and x:band(one:lshift(n:tonumber()) - one) or x
end
function u.div(x, y)
	if y == zero then error("division by zero") end
	return x / y
end
function u.rem(x, y)
	if y == zero then error("division by zero") end
	return x - x / y * y
end

-- bits reads n bits, at most 64, the most significant one first.
local function bits(tvb, bit, n)
	if n == 0 then return zero end
	local first, last = math.floor(bit / 8), math.floor((bit + n - 1) / 8)
	local spare = 8 * (last + 1) - bit - n
	local v
	if last - first < 8 then
		v = tvb(first, last - first + 1):uint64():rshift(spare)
	else
		local more = math.floor(tvb(last, 1):uint() / 2 ^ spare)
		v = tvb(first, 8):uint64():lshift(8 - spare):bor(UInt64(more))
	end
	return u.low(v, UInt64(n))
end

-- begins reports whether the first n bits of a field are those of hexadecimal digits.
local function begins(tvb, place, hex, n)
	if place.bits < n then return false end
	for at = 0, n - 1, 8 do
		local width = math.min(8, n - at)
		local want = math.floor(tonumber(hex:sub(at / 4 + 1, at / 4 + 2), 16) / 2 ^ (8 - width))
		if bits(tvb, place.bit + at, width) ~= UInt64(want) then return false end
	end
	return true
end

-- value is a field's as an integer.
local function value(tvb, place)
	local f = place.field
	if place.bits == 0 then return zero end
	if f.kind == "varint" then return bits(tvb, place.bit + 2, place.bits - 2) end
	if f.little then return tvb(place.bit / 8, place.bits / 8):le_uint64() end
	if place.bits > 64 then return zero end
	return bits(tvb, place.bit, place.bits)
end

-- Headers and stacks

-- context gives the expressions of a header its fields.
local function context(tvb, span)
	local c = {}
	function c.int(name) return value(tvb, span.at[name]) end
	function c.len(name) return UInt64(math.floor(span.at[name].bits / 8)) end
	function c.width(name)
		local place = span.at[name]
		return UInt64(place.field.kind == "varint" and math.max(0, place.bits - 2) or place.bits)
	end
	function c.byte(name, i)
		local place = span.at[name]
		if place.bits == 0 then return zero end
		if 8 * i >= place.bits then error("an index outside of " .. name) end
		return bits(tvb, place.bit + 8 * i, 8)
	end
	return c
end

-- lay_out finds the fields of a header from start on; limit is where what encloses it ends. It returns a span, and
-- what is wrong where the header doesn't fit.
local function lay_out(tvb, header, start, limit)
	local span = {header = header, start = start, limit = limit, places = {}, at = {}}
	local c = context(tvb, span)
	local bit = 8 * start
	for _, f in ipairs(header.fields) do
		local place = {field = f, bit = bit, bits = 0, there = true}
		if f.when then
			local ok, v = pcall(f.when, c)
			if not ok then return span, f.name .. ": its condition has no value" end
			place.there = u.t(v)
		end
		if not place.there then
			-- no bits
		elseif f.kind == "varint" then
			if bit / 8 >= limit then return span, f.name .. ": the packet ends in front of it" end
			place.bits = 8 * 2 ^ math.floor(tvb(bit / 8, 1):uint() / 64)
		elseif f.size then
			local ok, v = pcall(f.size, c)
			if not ok then return span, f.name .. ": its size has no value" end
			if v > UInt64(f.max) then return span, f.name .. ": its size is more than " .. f.max end
			place.bits = 8 * v:tonumber()
		else
			place.bits = f.bits
		end
		bit = bit + place.bits
		if bit > 8 * limit then return span, f.name .. ": the packet ends inside of it" end
		table.insert(span.places, place)
		span.at[f.name] = place
	end
	span.stop = math.floor((bit + 7) / 8)
	return span
end

-- forbidden returns the first field with a value that the header doesn't allow.
local function forbidden(tvb, span)
	for _, place in ipairs(span.places) do
		local f = place.field
		if f.is and place.there and place.bits > 0 then
			if not f.is(tvb, place, value(tvb, place)) then return place end
		end
	end
end

-- bound finds where a header's content ends, and notes the lengths that disagree with the packet.
local function bound(tvb, span, followed)
	span.inner = math.max(span.limit, span.stop)
	local roomy = {} -- lengths that leave room, which is right where something follows
	for _, place in ipairs(span.places) do
		local k = place.field.counts
		if k and place.there then
			local v = value(tvb, place)
			-- more than any packet has: the exact number doesn't matter
			local n = v < UInt64(0, 256) and (v:tonumber() - k.bias) * k.unit or 2 ^ 52
			if k.what == "header" then
				if n ~= span.stop - span.start then place.wrong = true end
			else
				n = n + (k.what == "all" and span.start or span.stop)
				local slack = span.limit - n
				if n < span.stop or slack < 0 then place.wrong = true end
				if k.slack >= 0 and slack > k.slack then table.insert(roomy, place) end
				if n >= span.stop and slack >= 0 then span.inner = n end
			end
		end
	end
	if not followed or span.inner >= span.limit then
		for _, place in ipairs(roomy) do place.wrong = true end
	end
	span.payload = math.max(span.stop, span.inner - span.header.trailer)
end

-- discriminates reports whether the fixed fields at the start of a header are there and have values that it allows.
local function discriminates(tvb, header, start, limit)
	local bit = 8 * start
	for _, f in ipairs(header.fields) do
		if f.when or f.size or f.kind == "varint" then return true end
		if f.is then
			if bit + f.bits > 8 * limit then return false end
			local place = {field = f, bit = bit, bits = f.bits, there = true}
			if not f.is(tvb, place, value(tvb, place)) then return false end
		end
		bit = bit + f.bits
	end
	return true
end

local function within(ranges, v)
	for _, r in ipairs(ranges) do
		if v >= r[1] and v <= r[2] then return true end
	end
	return false
end

-- announced reports whether the header in front says that another one follows; nil where that says nothing.
local function announced(tvb, header, parent, outer, pinfo)
	local found
	for _, a in ipairs(header.after) do
		if a.parent == (parent and parent.header.name or outer) then
			local all = true
			for _, m in ipairs(a.match) do
				if parent then
					local place = parent.at[m.field]
					all = all and place ~= nil and m.is(tvb, place, value(tvb, place))
				elseif m.ranges and m.from then
					all = all and within(m.ranges, pinfo[m.from])
				end
			end
			if all then return true end
			found = false
		end
	end
	return found
end

-- follow finds the header that begins at an offset, of those that an entry of a stack allows. The second result is
-- true where it can't be found out.
local function follow(tvb, entry, parent, outer, start, limit, pinfo)
	local choice = #entry.headers > 1 or entry.optional
	for _, name in ipairs(entry.headers) do
		local header = headers[name]
		local yes
		if not header then -- one of Wireshark's
			yes = true
			local version = versions[name]
			if version then
				if start >= limit then return nil, true end
				yes = math.floor(tvb(start, 1):uint() / 16) == version
			end
		else
			yes = choice and announced(tvb, header, parent, outer, pinfo)
			if parent and not choice then yes = announced(tvb, header, parent, outer, pinfo) end
			if yes == nil and choice then
				yes = discriminates(tvb, header, start, limit)
			end
			if yes == nil or not parent and not choice then yes = true end
		end
		if yes then return name end
	end
end

-- walk takes the packet apart as a program's stack says.
local function walk(tvb, stack, pinfo, outer)
	local found = {spans = {}, fits = 0, stack = stack}
	local by_entry = {}
	local at, limit = 0, tvb:len()
	for _, entry in ipairs(stack.entries) do
		local parent = found.spans[#found.spans]
		local optional = entry.optional
		local skip = false
		local host = entry.after and by_entry[entry.after]
		if host then
			parent = found.spans[host.index - 1]
			if host.inner >= host.limit then
				skip = true
				if not optional then return found end
			else
				at, limit, optional = host.inner, host.limit, false
			end
		end
		if not skip then
			local allowed = {headers = entry.headers, optional = optional}
			local name, unknown = follow(tvb, allowed, parent, outer, at, limit, pinfo)
			if unknown or not name and not optional then return found end
			if name and not headers[name] then
				found.next, found.at, found.limit, found.whole = name, at, limit, true
				found.fits = found.fits + 1
				return found
			end
			if name then
				local span, wrong = lay_out(tvb, headers[name], at, limit)
				span.entry, span.index = entry, #found.spans + 1
				table.insert(found.spans, span)
				if wrong then
					span.wrong = wrong
					return found
				end
				bound(tvb, span, entry.followed)
				span.bad = forbidden(tvb, span)
				by_entry[entry.name] = span
				if span.bad then return found end
				found.fits = found.fits + 1
				at, limit = span.stop, span.payload
			end
		end
	end
	found.whole = true
	return found
end

-- better reports whether a stack fits better than another one: more headers, or as many and these are all.
local function better(found, best)
	if not best or found.fits ~= best.fits then return not best or found.fits > best.fits end
	return found.whole and not best.whole
end

-- meant reports whether a packet's ports are those of a stack, and whether one of them is, in one direction or the
-- other.
local function meant(stack, pinfo)
	local all, known = true, false
	for from, ranges in pairs(stack.ports) do
		all = all and within(ranges, pinfo[from])
		known = known or within(ranges, pinfo.src_port) or within(ranges, pinfo.dst_port)
	end
	return all, known
end

local show_elements

local function show_place(tree, tvb, span, place)
	local f = place.field
	if place.bits == 0 then return end
	local first = math.floor(place.bit / 8)
	local range = tvb(first, math.floor((place.bit + place.bits + 7) / 8) - first)
	local item
	if f.plain then
		item = f.little and tree:add_le(f.proto, range) or tree:add(f.proto, range)
	elseif f.wide then
		item = tree:add(f.proto, range, value(tvb, place))
	else
		item = tree:add(f.proto, range, value(tvb, place):tonumber())
	end
	if place.wrong then item:add_proto_expert_info(experts.length) end
	if span.bad == place then item:add_proto_expert_info(experts.value) end
	for _, form in ipairs(f.elements or {}) do
		local ok, applies = true, one
		if form.when then ok, applies = pcall(form.when, context(tvb, span)) end
		if ok and u.t(applies) then
			show_elements(item, range, f, form)
			break
		end
	end
end

-- show_elements shows a list of elements; one that doesn't fit ends it.
function show_elements(tree, range, f, form)
	local at = 0
	local room = 2 ^ form.id
	while at < range:len() do
		local first = range(at, 1):uint()
		local id = math.floor(first / 2 ^ (8 - form.id))
		if id == form.pad then
			at = at + 1
		elseif id == form.stop then
			tree:add(range(at), "End of the list")
			return
		else
			local head = form.id / 4
			local size
			if at + head <= range:len() then
				size = range(at + head - 1, 1):uint() % room + form.bias
			end
			if not size or at + head + size > range:len() then
				tree:add(range(at), "An element that doesn't fit"):add_proto_expert_info(experts.length)
				return
			end
			local item = tree:add(range(at, head + size), "Element " .. id)
			item:add(f.element_id, range(at, 1), id)
			item:add(f.element_length, range(at + head - 1, 1), size)
			if size > 0 then item:add(f.element_content, range(at + head, size)) end
			at = at + head + size
		end
	end
end

-- show puts what was found into the tree.
local function show(proto, tvb, pinfo, root, found)
	local tree = root:add(proto, tvb())
	local names = {}
	for i, span in ipairs(found.spans) do
		local last = span.places[#span.places]
		local stop = span.stop or last and math.floor((last.bit + last.bits + 7) / 8) or span.start
		stop = math.min(math.max(stop, span.start), tvb:len())
		local branch
		if stop > span.start then
			branch = tree:add(span.header.proto, tvb(span.start, stop - span.start))
		else
			branch = tree:add(span.header.name)
		end
		for _, place in ipairs(span.places) do show_place(branch, tvb, span, place) end
		if span.wrong then
			branch:add_proto_expert_info(experts.truncated, span.wrong)
		elseif found.spans[i + 1] and found.spans[i + 1].start >= span.inner and span.payload > span.stop then
			branch:add(tvb(span.stop, span.payload - span.stop), "Payload")
		end
		if span.inner and span.header.trailer > 0 and span.inner > span.payload then
			branch:add(tvb(span.payload, math.min(span.inner, tvb:len()) - span.payload), "Trailer")
		end
		table.insert(names, span.header.name)
	end
	pinfo.cols.protocol = title
	pinfo.cols.info = table.concat(names, ", ")
	local last = found.spans[#found.spans]
	local at, limit, name = found.at, found.limit, found.next
	if not name and last.payload then at, limit, name = last.stop, last.payload, "data" end
	if name and limit > at then
		-- what is malformed there is shown as that, and is an error as well
		local inner = Dissector.get(dissectors[name] or name)
		pcall(inner.call, inner, tvb(at, limit - at):tvb(), pinfo, root)
	end
end

-- The program whose stack fits best says what a packet is. One with ports that no stack has was given to the dissector
-- by its user: it may be any program's.
local function dissect(proto, parent, tvb, pinfo, root)
	local any = true
	for _, stack in ipairs(stacks) do
		local _, known = meant(stack, pinfo)
		any = any and not known
	end
	-- Wireshark orders addresses by their type first: those of IPv6 are greater than all of IPv4.
	local version = pinfo.net_src <= Address.ip("255.255.255.255") and 4 or 6
	local best
	for _, stack in ipairs(stacks) do
		if any or meant(stack, pinfo) then
			for _, outer in ipairs(stack.parents[parent] or {}) do
				if (versions[outer] or version) == version then
					local found = walk(tvb, stack, pinfo, outer)
					if #found.spans > 0 and better(found, best) then best = found end
				end
			end
		end
	end
	if not best then return 0 end
	show(proto, tvb, pinfo, root, best)
	return tvb:len()
end

-- Fields.
local all = {}

local function field(f, kind, path, ...)
	local made = ProtoField[kind](name .. "." .. path, f, ...)
	table.insert(all, made)
	return made
end

for _, header in pairs(headers) do
	header.proto = field(header.name, "none", header.name)
	for _, f in ipairs(header.fields) do
		local path = header.name .. "." .. f.name
		local display = nil
		if f.type:sub(1, 4) == "uint" then display = f.bits and f.bits < 8 and base.DEC or base.DEC_HEX end
		if f.mask then
			f.proto = field(f.name, f.type, path, display, nil, f.mask)
		elseif display then
			f.proto = field(f.name, f.type, path, display)
		else
			f.proto = field(f.name, f.type, path)
		end
		if f.elements then
			f.element_id = field("id", "uint8", path .. ".id", base.DEC)
			f.element_length = field("length", "uint8", path .. ".length", base.DEC)
			f.element_content = field("content", "bytes", path .. ".content")
		end
	end
end

-- One protocol for each kind of header that ours come after; the first one has the fields.
local first
for _, t in ipairs(tables) do
	local parent = t.parent
	local proto = Proto(first and name .. "_" .. parent or name, title .. (first and " (" .. parent .. ")" or ""))
	if not first then
		first = proto
		proto.fields = all
		proto.experts = {experts.length, experts.value, experts.truncated}
	end
	function proto.dissector(tvb, pinfo, root) return dissect(proto, parent, tvb, pinfo, root) end
	local places = DissectorTable.get(t.table)
	proto.prefs[parent] = Pref.range(t.label, t.values, "Packets that the headers of the relay are in", t.most)
	places:add_for_decode_as(proto)
	local now = ""
	local function register(values)
		if now ~= "" then places:remove(now, proto) end
		now = values
		if now ~= "" then places:add(now, proto) end
	end
	register(t.values)
	function proto.prefs_changed() register(proto.prefs[parent]) end
end
