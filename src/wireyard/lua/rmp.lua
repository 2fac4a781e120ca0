-- RMP messaging layer: a UDP datagram is a packet of one or more messages. It cannot be detected,
-- so it has to be selected by Decode As, or -d udp.port==5000,rmp_messaging. Wireshark's own rmp is
-- HP's Remote Maintenance Protocol.

local of = protocol("rmp_messaging", layout.title, layout.columns)
of.proto.prefs.list_order = Pref.bool(
    "Length before reply-to", false, "The length of the data comes before the reply-to field")

local flag = {}
for _, one in ipairs(layout.FLAGS) do flag[one.name] = one.value end

-- Add the message at `at`; return its end and whether another follows, nothing if it breaks a rule.
local function add_message(root, tvb, at, place)
    local stop = tvb:len()
    local tree = root:add(of.proto, tvb(at, stop - at))
    add_generated(of, tree, "message_in_packet", place)
    local function broken(text)
        fault(of, tree, tvb(at, stop - at), text)
    end
    if stop - at < 2 then return broken("half a typing word") end
    local start, word = at, tvb(at, 2):uint()
    tree:add(of.fields.typing, tvb(at, 2))
    tree:add(of.fields.foreign, tvb(at, 2), word >= layout.FOREIGN)
    if word >= layout.FOREIGN then
        add_generated(of, tree, "data_size", stop - at)
        add_rest(of, tree, "data", tvb, at, stop)
        return stop, false
    end
    local layer, more = word % (layout.LAYER_MASK + 1), has(word, flag.more_follows)
    tree:add(of.fields.layer, tvb(at + 1, 1), layer)
    if layout.LAYERS[layer] then
        tree:add(of.fields.layer_name, tvb(at + 1, 1), layout.LAYERS[layer])
    end
    tree:add(of.fields.reply_requested, tvb(at, 2), has(word, flag.reply_requested))
    tree:add(of.fields.more_follows, tvb(at, 2), more)
    at = at + 2
    local values = {}
    for _, part in ipairs(of.proto.prefs.list_order and layout.LIST_ORDER or layout.FLAG_ORDER) do
        for _, field in ipairs(has(word, flag[part.flag]) and part.layout or {}) do
            if stop - at < field.width then return broken(field.name .. " does not fit") end
            local range = tvb(at, field.width)
            if field.kind == "bytes" then
                local address = tostring(range(0, 4):ipv4())
                tree:add(of.fields[field.name], range, address .. ":" .. range(4, 2):uint())
            else
                values[field.name] = range:uint()
                tree:add(of.fields[field.name], range)
            end
            at = at + field.width
        end
    end
    local number, count = values.packet_number, values.packet_count
    if number and (number == 0 or number > count) then
        return broken("packet " .. number .. " of " .. count)
    end
    local size = values.data_size or stop - at
    if size > stop - at then return broken("data does not fit") end
    if not values.data_size then add_generated(of, tree, "data_size", size) end
    add_rest(of, tree, "data", tvb, at, at + size)
    at = at + size
    tree:set_len(at - start)
    if more and at == stop then return broken("no message follows") end
    return at, more
end

function of.proto.dissector(tvb, pinfo, root)
    pinfo.cols.protocol = "RMP"
    local at, place, more = 0, 0, true
    while more and at < tvb:len() do
        at, more = add_message(root, tvb, at, place)
        place = place + 1
        if at == nil then break end
    end
    pinfo.cols.info = at and place .. " messages" or "malformed"
    return tvb:len()
end

DissectorTable.get("udp.port"):add_for_decode_as(of.proto)
