-- JMQ: client-broker packets. `layout` has the tables of wireyard's layout of the format.

local of = protocol("jmq", layout.title, layout.columns,
    flag_columns(layout.FLAGS, 2), property_columns(layout.PROPERTY_TYPES))
may_have_short_objects(of)

local function size_at(tvb, at)
    if tvb:len() - at < layout.PREFIX_BYTES then return nil end
    if tvb(at, 4):uint() ~= layout.MAGIC then return nil end
    local size = tvb(at + 8, 4):int()
    local known = layout.HEADERS[tvb(at + 4, 2):uint()]
    local least = known and layout.HEADER_BYTES or layout.PREFIX_BYTES
    if size < least or size > layout.MAX_PACKET_BYTES then return nil end
    return size
end

-- The 16 bytes in their three forms (errata 20): IPv4-mapped, IPv4 with a MAC in front, IPv6.
local function address_text(range)
    local bytes = range:bytes()
    local function byte(place) return bytes:get_index(place) end
    local quad = string.format("%d.%d.%d.%d", byte(12), byte(13), byte(14), byte(15))
    local hex = bytes:tohex()
    if hex:sub(1, 24) == "00000000000000000000FFFF" then return quad end
    local groups = {}
    if hex:sub(1, 8) == "FF000000" then
        for place = 4, 9 do groups[#groups + 1] = string.format("%x", byte(place)) end
        return quad .. "(" .. table.concat(groups, ":") .. ")"
    end
    for place = 0, 14, 2 do
        groups[#groups + 1] = string.format("%x", 256 * byte(place) + byte(place + 1))
    end
    return table.concat(groups, ":")
end

local crc_steps = {}
for value = 0, 255 do
    local crc = value
    for _ = 1, 8 do
        crc = bit.bxor(bit.rshift(crc, 1), crc % 2 == 1 and 0xEDB88320 or 0) % 2 ^ 32
    end
    crc_steps[value] = crc
end

-- CRC-32 of the kind and the name of a destination (errata 36).
local function destination_hash(kind, name)
    local text, crc = kind .. ":" .. name, 2 ^ 32 - 1
    for at = 1, #text do
        local step = crc_steps[bit.band(bit.bxor(crc, string.byte(text, at)), 255)]
        crc = bit.bxor(step, bit.rshift(crc, 8)) % 2 ^ 32
    end
    return 2 ^ 32 - 1 - crc
end

local function add_items(tree, tvb, at, stop, is_queue)
    local seen = {}
    while at < stop do
        if stop - at < 2 then
            return fault(of, tree, tvb(at, stop - at), "the list of items has no end")
        end
        local code = tvb(at, 2):uint()
        if code == 0 then return seen end
        local length = stop - at >= 4 and tvb(at + 2, 2):uint()
        if not length or length > stop - at - 4 then
            return fault(of, tree, tvb(at, stop - at), "an item does not fit")
        end
        local item, start = layout.ITEMS[code], at + 4
        local range = length > 0 and tvb(start, length) or tvb(at, 4)
        if item == nil then
            tree:add(of.fields.unknown_items, range)
        elseif item.width == nil then
            add_text(of, tree, item.name, range, length)
            if item.name == "destination" then
                local name = length > 0 and utf8_of(range) or ""
                local hash = destination_hash(is_queue and "Q" or "T", name)
                add_generated(of, tree, "destination_hash", hash)
            end
        elseif item.width == length then
            add(of, tree, item.name, range)
        else
            fault(of, tree, range, item.name .. " has another length")
        end
        at = start + length
    end
end

local function dissect(tvb, pinfo, root)
    local tree = root:add(of.proto, tvb())
    local version, size = tvb(4, 2):uint(), tvb:len()
    local header = layout.HEADERS[version]
    local kind = tvb(6, 2):int()
    local name = layout.PACKET_TYPES[kind]
    show_type(of, pinfo, tree, name, kind)
    if header == nil then
        add_header(of, tree, layout.HEADERS[301], tvb, layout.PREFIX_BYTES)
        return fault(of, tree, tvb(4, 2), "nobody knows version " .. version)
    end
    local flags = field_of(header, "bit_flags")
    local word, known, counted = tvb(flags.offset, flags.width), {}, nil
    if version == 103 then -- 2.0 clients left garbage above (errata 27)
        counted = layout.FLAGS_OF_103
        known.bit_flags = bit.band(word:uint(), counted)
    end
    add_header(of, tree, header, tvb, layout.HEADER_BYTES, known)
    add_flags(of, tree, layout.FLAGS, word, counted)
    local ip = field_of(header, "source_ip")
    local address = address_text(tvb(ip.offset, ip.width))
    add_generated(of, tree, "source_ip_text", address)
    add_generated(of, tree, "sys_message_id", string.format(
        "%d-%s-%d-%s", number_at(header, "sequence", tvb), address,
        number_at(header, "source_port", tvb),
        tostring(tvb(field_of(header, "timestamp").offset, 8):int64())))
    local is_queue = has(word:uint(), field_of(layout.FLAGS, "Q").value)
    local start = number_at(header, "property_offset", tvb)
    local length = number_at(header, "property_size", tvb)
    if start < layout.HEADER_BYTES or start > size or length < 0 or length > size - start then
        local range = tvb(field_of(header, "property_offset").offset, 8)
        return fault(of, tree, range, "the properties do not fit in the packet")
    end
    add_items(tree, tvb, layout.HEADER_BYTES, start, is_queue)
    local body = start + length
    if length > 0 and version == 301 then
        add_properties(of, tree, layout.PROPERTY_TYPES, tvb, start, body)
    else
        add_rest(of, tree, "properties", tvb, start, body)
    end
    add_generated(of, tree, "body_size", size - body)
    add_rest(of, tree, "body", tvb, body, size)
end

-- Brokers choose their ports, so packets are detected by their first bytes. On port 7676 the port
-- mapper sends text first.
dissect_stream(of, layout.PREFIX_BYTES, size_at, dissect)
