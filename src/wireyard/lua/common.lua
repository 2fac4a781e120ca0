-- Functions that the dissectors below share. No byte is read before its presence is checked: any
-- length in a packet may be wrong, and unreadable bytes become an expert item, never a Lua error.

-- Return a protocol with a field for each column, of the same name; takes lists of columns.
local function protocol(name, title, ...)
    local proto, fields, kinds, units = Proto(name, title), {}, {}, {}
    local function declare(column)
        local kind = ProtoField[column.kind]
        local filter = name .. "." .. column.name
        if column.kind == "string" or column.kind == "bytes" then
            fields[column.name] = kind(filter, column.name, base.NONE, column.doc)
        elseif column.kind == "float" or column.kind == "double" then
            fields[column.name] = kind(filter, column.name, column.doc)
        elseif column.kind == "bool" then
            local bits = column.bits or base.NONE
            fields[column.name] = kind(filter, column.name, bits, nil, column.mask, column.doc)
        else
            fields[column.name] = kind(filter, column.name, base.DEC, nil, nil, column.doc)
        end
        kinds[column.name], units[column.name] = column.kind, column.unit
    end
    for _, columns in ipairs({ ... }) do
        for _, column in ipairs(columns) do declare(column) end
    end
    proto.fields = fields
    local malformed = ProtoExpert.new(
        name .. ".malformed", "Breaks a rule", expert.group.MALFORMED, expert.severity.ERROR)
    proto.experts = { malformed }
    return { proto = proto, fields = fields, kinds = kinds, units = units, malformed = malformed }
end

local function fault(of, tree, range, text)
    tree:add_tvb_expert_info(of.malformed, range, text)
end

-- Return a time in ms since epoch as ISO 8601; nil for 0, and for times after the year 9999.
local function time_text(ms)
    local seconds = math.floor(ms:tonumber() / 1000)
    if seconds <= 0 or seconds > 253402300799 then return nil end
    return os.date("!%Y-%m-%dT%H:%M:%S", seconds) .. string.format(".%03dZ", ms:tonumber() % 1000)
end

local function add(of, tree, name, range, value)
    local field = of.fields[name]
    local item = value and tree:add(field, range, value) or tree:add(field, range)
    local text = of.units[name] == "ms since epoch" and time_text(range:int64())
    if text then item:append_text(" (" .. text .. ")") end
    return item
end

-- Add the bytes [start, stop), unless there are none.
local function add_rest(of, tree, name, tvb, start, stop)
    if stop > start then tree:add(of.fields[name], tvb(start, stop - start)) end
end

local function pair_text(first, second, third, fourth)
    local function low(byte, bits) return string.byte(byte) % 2 ^ bits end
    local high = low(first, 4) * 64 + low(second, 6) -- of 20 bits
    local code = 0x10000 + high * 1024 + low(third, 4) * 64 + low(fourth, 6)
    local function bits(shift) return math.floor(code / 2 ^ shift) % 64 end
    return string.char(240 + math.floor(code / 2 ^ 18), 128 + bits(12), 128 + bits(6), 128 + bits(0))
end

local function run_text(run)
    local first, second = string.byte(run, 1, 2)
    local width = first >= 240 and 4 or first >= 224 and 3 or first >= 194 and 2 or 0
    if #run ~= width or first > 244 or (first == 237 and second >= 160) then
        return "\239\191\189"
    end
end

-- Return Java's modified UTF-8 (errata 8) as UTF-8: a pair of surrogates becomes one character.
local function utf8_of(range)
    local text = range:raw():gsub("\192\128", "\0")
    return (text:gsub("\237([\160-\175])([\128-\191])\237([\176-\191])([\128-\191])", pair_text))
end

-- Return the same for display: NUL, which would end the text in Wireshark, becomes U+2400, and
-- bytes that are not UTF-8 become U+FFFD.
local function text_of(range)
    local text = utf8_of(range):gsub("%z", "\226\144\128")
    return (text:gsub("[\128-\255][\128-\191]*", run_text))
end

local function add_text(of, tree, name, range, length)
    return tree:add(of.fields[name], range, length > 0 and text_of(range) or "")
end

-- Add a generated field, which is derived from other fields.
local function add_generated(of, tree, name, value)
    if of.kinds[name] == "int64" then value = Int64.new(value) end
    tree:add(of.fields[name], value):set_generated()
end

-- Add every field of a header that is a column, up to byte `stop`; `known` has values of some
-- fields that replace those of the header.
local function add_header(of, tree, header, tvb, stop, known)
    for _, field in ipairs(header) do
        if of.fields[field.name] and field.offset + field.width <= stop then
            add(of, tree, field.name, tvb(field.offset, field.width), (known or {})[field.name])
        end
    end
end

local function field_of(header, name)
    for _, field in ipairs(header) do
        if field.name == name then return field end
    end
end

local function number_at(header, name, tvb)
    local field = field_of(header, name)
    local range = tvb(field.offset, field.width)
    if field.kind:sub(1, 1) == "i" then return range:int() end
    return range:uint()
end

local function has(word, bit)
    return word % (2 * bit) >= bit
end

-- Columns for single flags, each a bit of a word.
local function flag_columns(flags, width)
    local columns = {}
    for _, flag in ipairs(flags) do
        columns[#columns + 1] = {
            name = "flags." .. flag.name, kind = "bool", doc = flag.doc, mask = flag.value,
            bits = 8 * width,
        }
    end
    return columns
end

-- Add the letters of the flags that are set in a word, and return their item.
local function add_letters(of, tree, flags, word)
    local letters = ""
    for _, flag in ipairs(flags) do
        if has(word, flag.value) then letters = letters .. flag.name end
    end
    return tree:add(of.fields.flags, letters):set_generated()
end

-- Add the flags of a word, or those of them in `counted`.
local function add_flags(of, tree, flags, range, counted)
    local word = range:uint()
    if counted then word = bit.band(word, counted) end
    local item = add_letters(of, tree, flags, word)
    for _, flag in ipairs(flags) do
        if not counted or has(counted, flag.value) then
            item:add(of.fields["flags." .. flag.name], range)
        end
    end
end

-- The property section of JMQ 3.0.1 and GPacket: kind and bytes of a value, by the name of its type.
local PROPERTY_KINDS = {
    boolean = { "bool", 1 }, byte = { "int8", 1 }, short = { "int16", 2 },
    integer = { "int32", 4 }, long = { "int64", 8 }, float = { "float", 4 },
    double = { "double", 8 }, string = { "string" }, object = { "bytes" },
}

local function property_columns(types)
    local columns = {
        { name = "property.name", kind = "string", doc = "name of the property" },
        { name = "property.type", kind = "string", doc = "type of the property" },
    }
    for _, kind in pairs(types) do
        columns[#columns + 1] = {
            name = "property." .. kind, kind = PROPERTY_KINDS[kind][1], doc = "value of a property",
        }
    end
    return columns
end

-- Add a preference: the length of OBJECT properties whose bytes do not show it.
local function may_have_short_objects(of)
    of.proto.prefs.short_objects = Pref.bool(
        "Short objects", false, "OBJECT properties that are no Java objects have a length of 16 bits")
end

-- Return the bytes of the length of an OBJECT at `at`: every serialized object begins with AC ED
-- (errata 41).
local function object_length_bytes(of, tvb, at, stop)
    local function is_serialized(start)
        return start + 2 <= stop and tvb(start, 2):uint() == 0xACED
    end
    if is_serialized(at + 4) then return 4 end
    if is_serialized(at + 2) and tvb(at, 2):uint() > 1 then return 2 end
    return of.proto.prefs.short_objects and 2 or 4
end

local function add_properties(of, root, types, tvb, start, stop)
    local tree = root:add(of.fields.properties, tvb(start, stop - start))
    local at = start
    local function broken(text)
        fault(of, tree, tvb(start, stop - start), "properties: " .. text)
    end
    if stop - at < 8 then return broken("need 8 bytes") end
    if tvb(at, 4):int() ~= 1 then return broken("are not of version 1") end
    local count = tvb(at + 4, 4):int()
    at = at + 8
    if count < 0 then return broken("are less than none") end
    for _ = 1, count do
        local from = at
        if stop - at < 2 then return broken("end early") end
        local length = tvb(at, 2):uint()
        if stop - at < length + 4 then return broken("end early") end
        local text = length > 0 and text_of(tvb(at + 2, length)) or ""
        local name = length > 0 and tvb(at + 2, length) or tvb(at, 2)
        at = at + 2 + length
        local kind = types[tvb(at, 2):int()]
        if kind == nil then return broken("have an unknown type") end
        local type_range = tvb(at, 2)
        at = at + 2
        local width = PROPERTY_KINDS[kind][2]
        if width == nil then
            local prefix = kind == "object" and object_length_bytes(of, tvb, at, stop) or 2
            if stop - at < prefix then return broken("end early") end
            width = prefix == 4 and tvb(at, 4):int() or tvb(at, 2):uint()
            at = at + prefix
        end
        if width < 0 or stop - at < width then return broken("end early") end
        local item = tree:add(tvb(from, at + width - from), text)
        add_text(of, item, "property.name", name, length)
        item:add(of.fields["property.type"], type_range, kind)
        local range = width > 0 and tvb(at, width) or type_range
        if kind == "string" then
            add_text(of, item, "property.string", range, width)
        elseif width > 0 then
            item:add(of.fields["property." .. kind], range)
        end
        at = at + width
    end
end

local shown -- the packets of one segment, for the column Info

-- Show the type of a packet, after those of the packets before it in the same segment.
local function show_type(of, pinfo, tree, name, number)
    local text = name or tostring(number)
    tree:append_text(", " .. text)
    shown = shown and shown .. ", " .. text or text
    pinfo.cols.info = shown
    if name then add_generated(of, tree, "packet_type_name", name) end
end

-- Dissect a stream: call `dissect` with each whole packet. `size_at` returns the size of the packet
-- at an offset, for which it needs `least` bytes, or nil if none begins there. Bytes that belong to
-- no packet are joined with the next one, because Wireshark accepts no units shorter than `least`.
local function dissect_stream(of, least, size_at, dissect)
    local function find(tvb, at)
        for start = at, tvb:len() - least do
            local size = size_at(tvb, start)
            if size then return start, size end
        end
    end
    local function length(tvb, _, at)
        local start, size = find(tvb, at)
        return start and start - at + size or tvb:reported_length_remaining(at)
    end
    local function dissect_unit(tvb, pinfo, root)
        local start = find(tvb, 0) or tvb:len()
        if start > 0 then
            local lost = tvb(0, start)
            fault(of, root:add(of.proto, lost), lost, "bytes that belong to no packet")
        end
        if start < tvb:len() then dissect(tvb(start):tvb(), pinfo, root) end
        return tvb:len()
    end
    local function dissect_segment(tvb, pinfo, root)
        pinfo.cols.protocol = of.proto.name
        shown = nil
        dissect_tcp_pdus(tvb, root, least, length, dissect_unit)
        return tvb:len()
    end
    of.proto.dissector = dissect_segment
    DissectorTable.get("tcp.port"):add_for_decode_as(of.proto)
    of.proto:register_heuristic("tcp", function(tvb, pinfo, root)
        if tvb:len() < least or size_at(tvb, 0) == nil then return false end
        -- Later segments need not begin with a packet, so the whole conversation is ours from here.
        pinfo.conversation = of.proto
        -- Called directly: through `of.proto`, packets could not continue in the next segment.
        dissect_segment(tvb, pinfo, root)
        return true
    end)
end
