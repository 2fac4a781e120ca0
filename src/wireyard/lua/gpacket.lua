-- GPacket: broker-broker packets, in both orders of the header, and the packets of the link itself.

local of = protocol("gpacket", layout.title, layout.columns,
    flag_columns(layout.FLAGS, 4), property_columns(layout.PROPERTY_TYPES))
may_have_short_objects(of)
local link = protocol("gpacket_link", "link packets of " .. layout.title, layout.others.gpacket_link)

local function header_at(tvb, at)
    local left = tvb:len() - at
    if left < layout.PREFIX_BYTES then return nil end
    if tvb(at, 4):uint() == layout.MAGIC then return layout.HEADERS.documented, "documented" end
    if tvb(at + 8, 4):uint() == layout.MAGIC then return layout.HEADERS.shipped, "shipped" end
    if tvb(at, 2):uint() == layout.LINK_VERSION and layout.LINK_TYPES[tvb(at + 2, 2):int()] then
        return layout.LINK_HEADER, nil
    end
end

local function size_at(tvb, at)
    local header, order = header_at(tvb, at)
    if header == nil then return nil end
    local size = tvb(at + field_of(header, "size").offset, 4):int()
    local least = layout.LINK_BYTES
    if order then
        local version = field_of(header, "version")
        local known = tvb(at + version.offset, version.width):uint() == layout.VERSION
        least = known and layout.HEADER_BYTES or layout.PREFIX_BYTES
    end
    local most = order and layout.MAX_PACKET_BYTES or layout.MAX_LINK_BYTES
    if size < least or size > most then return nil end
    return size
end

local function dissect_link(tvb, pinfo, root)
    local tree = root:add(link.proto, tvb())
    local header = layout.LINK_HEADER
    local kind = number_at(header, "packet_type", tvb)
    local name = layout.LINK_TYPES[kind]
    show_type(link, pinfo, tree, name, kind)
    add_header(link, tree, header, tvb, layout.LINK_BYTES)
    local flags = field_of(header, "bit_flags")
    add(link, tree, "flags", tvb(flags.offset, flags.width))
    add_rest(link, tree, "payload", tvb, layout.LINK_BYTES, tvb:len())
end

-- Return whether a packet is a ported JMQ packet: by its first property (errata G11).
local function is_ported(tvb)
    local at, sign = layout.HEADER_BYTES + 8, layout.PORTED_SIGN
    local stop = at + #sign / 2
    return stop <= tvb:len() and stop <= layout.HEADER_BYTES + tvb(12, 4):int()
        and tvb(at, stop - at):bytes():tohex(true) == sign
end

local function dissect(tvb, pinfo, root)
    local header, order = header_at(tvb, 0)
    if order == nil then return dissect_link(tvb, pinfo, root) end
    local tree = root:add(of.proto, tvb())
    local kind = number_at(header, "packet_type", tvb)
    local known = number_at(header, "version", tvb) == layout.VERSION
    local ported = known and is_ported(tvb)
    local name = (ported and layout.PORTED_TYPES or layout.PACKET_TYPES)[kind]
    show_type(of, pinfo, tree, name, kind)
    add_generated(of, tree, "header_order", order)
    if not known then
        add_header(of, tree, header, tvb, layout.PREFIX_BYTES)
        local version = number_at(header, "version", tvb)
        return fault(of, tree, tvb(0, 8), "nobody knows version " .. version)
    end
    add_header(of, tree, header, tvb, layout.HEADER_BYTES)
    local flags = field_of(header, "bit_flags")
    if ported then
        add_letters(of, tree, layout.PORTED_FLAGS, tvb(flags.offset, flags.width):uint())
    else
        add_flags(of, tree, layout.FLAGS, tvb(flags.offset, flags.width))
    end
    local length, size = number_at(header, "property_size", tvb), tvb:len()
    if length < 0 or length > size - layout.HEADER_BYTES then
        local at = field_of(header, "property_size").offset
        return fault(of, tree, tvb(at, 4), "the properties do not fit in the packet")
    end
    local payload = layout.HEADER_BYTES + length
    if length > 0 then
        add_properties(of, tree, layout.PROPERTY_TYPES, tvb, layout.HEADER_BYTES, payload)
    end
    add_generated(of, tree, "payload_size", size - payload)
    add_rest(of, tree, "payload", tvb, payload, size)
end

dissect_stream(of, layout.PREFIX_BYTES, size_at, dissect)
