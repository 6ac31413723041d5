package abi

import "fmt"

// Names of the maps that relays have besides those of their tables and groups.
const (
	MapLease      = "fr_lease"
	MapReasons    = "fr_reasons"
	MapCongestion = "fr_congestion" // struct_ops: a congestion control of TCP; its link is pinned
	MapSlots      = "fr_slots"
	MapUsage      = "fr_usage"
	MapShared     = "fr_shared"
	MapNamed      = "fr_named"
	MapReceivers  = "fr_receivers"
	MapCredits    = "fr_credits"
	MapTranslate  = "fr_translate"
	MapEvents     = "fr_events"
	MapLost       = "fr_lost"
	MapScratch    = "fr_scratch"
	MapFront      = "fr_front"
	MapCopies     = "fr_copies"
	MapRows       = "fr_rows"
	MapLearned    = "fr_learned"
	MapDevmap     = "fr_devmap"
	MapMACs       = "fr_macs"
)

// PinnedLayout is the pin beside those of the maps that says what is in them.
const PinnedLayout = "layout"

// MapType is the type of a map: the number that the kernel's interface gives it.
type MapType uint32

// Types of maps in use (enum bpf_map_type, include/uapi/linux/bpf.h).
const (
	Hash          MapType = 1
	Array         MapType = 2
	PerCPUHash    MapType = 5
	PerCPUArray   MapType = 6
	LRUHash       MapType = 9
	LRUPerCPUHash MapType = 10
	LPMTrie       MapType = 11
	HashOfMaps    MapType = 13
	DevmapHash    MapType = 25
	RingBuf       MapType = 27
)

var mapTypes = map[MapType][2]string{
	Hash: {"hash", "HASH"}, Array: {"array", "ARRAY"}, PerCPUHash: {"per-CPU hash", "PERCPU_HASH"},
	PerCPUArray: {"per-CPU array", "PERCPU_ARRAY"}, LRUHash: {"LRU hash", "LRU_HASH"},
	LRUPerCPUHash: {"per-CPU LRU hash", "LRU_PERCPU_HASH"},
	LPMTrie:       {"LPM trie", "LPM_TRIE"}, HashOfMaps: {"hash of maps", "HASH_OF_MAPS"},
	DevmapHash: {"hash of devices", "DEVMAP_HASH"}, RingBuf: {"ring buffer", "RINGBUF"},
}

// String names the type.
func (t MapType) String() string {
	if names, ok := mapTypes[t]; ok {
		return names[0]
	}
	return fmt.Sprintf("MapType(%d)", uint32(t))
}

// C returns the name of the type in C.
func (t MapType) C() string { return "BPF_MAP_TYPE_" + mapTypes[t][1] }

// MapType returns the type of the map of a table; 0 if the kernel has none.
func (k TableKind) MapType(perCPU bool) MapType {
	switch {
	case k == TableHash && perCPU:
		return PerCPUHash
	case k == TableHash:
		return Hash
	case k == TableLRU && perCPU:
		return LRUPerCPUHash
	case k == TableLRU:
		return LRUHash
	case k == TableArray && perCPU:
		return PerCPUArray
	case k == TableArray:
		return Array
	case k == TableLPM && !perCPU:
		return LPMTrie
	}
	return 0
}

// Map is a map of a relay's object.
type Map struct {
	Name      string
	Type      MapType
	Mmap      bool // user space maps it into its memory (BPF_F_MMAPABLE)
	Pinned    bool // it outlives the process, if the relay is pinned
	KeySize   int
	ValueSize int
	Entries   int
	List      int // hash of maps: size of the value of the inner maps, which are arrays with one entry
}

// MapInfo is what the maps of all relays have in common that have one of a name, for people and for the runtime.
type MapInfo struct {
	Name    string  // of tables and groups: the prefix
	Type    MapType // 0: it depends on the kind of the table
	Mmap    bool
	Pinned  bool
	Entries string // in words
	Value   string
	When    string // which relays have it; "": all
	PerName bool   // each table or group has one

	of func(d *Desc) (entries, key, value int) // nil: only the object says how large it is
}

const index = 4 // size of the key of an array

// MapInfos are all maps that a relay can have, in the order of docs/internals.md.
func MapInfos() []MapInfo { return append([]MapInfo(nil), infos...) }

var infos = []MapInfo{
	{Name: MapLease, Type: Array, Mmap: true, Pinned: true, Entries: "1", Value: "`struct fr_lease`",
		of: func(d *Desc) (int, int, int) { return 1, index, LeaseSize }},
	{Name: MapReasons, Type: PerCPUArray, Pinned: true, Entries: "each program's, by reason",
		Value: "`struct fr_reason`",
		of:    func(d *Desc) (int, int, int) { return d.Reasons(), index, ReasonSize }},
	{Name: MapSlots, Type: Array, Mmap: true, Pinned: true, Entries: "`Slots`", Value: "`struct fr_slot`",
		When: "sessions",
		of:   func(d *Desc) (int, int, int) { return d.Slots, index, SlotSize }},
	{Name: MapUsage, Type: PerCPUArray, Pinned: true, Entries: "`Slots`",
		Value: "`struct fr_usage`, with `Usages` rows", When: "sessions",
		of: func(d *Desc) (int, int, int) { return d.Slots, index, UsageSize(d.Usages) }},
	{Name: MapShared, Type: Array, Mmap: true, Pinned: true, Entries: "`Shared`",
		Value: "`u64`; entry 0 is never used, so that index 0 means none",
		When:  "counters in tables", of: func(d *Desc) (int, int, int) { return d.Shared, index, 8 }},
	{Name: MapNamed, Type: PerCPUArray, Pinned: true, Entries: "named counters", Value: "`u64`",
		When: "`{count: \"name\"}`",
		of:   func(d *Desc) (int, int, int) { return len(d.Counters), index, 8 }},
	{Name: MapReceivers, Type: PerCPUArray, Pinned: true, Entries: "`Receivers`",
		Value: "`struct fr_receiver`, by identity; entry 0 is never used",
		When:  "groups", of: func(d *Desc) (int, int, int) { return d.Receivers, index, ReceiverSize }},
	{Name: MapCredits, Type: Array, Mmap: true, Pinned: true, Entries: "`Credits`",
		Value: "`struct fr_credit`; entry 0 is never used",
		When:  "credits or buckets", of: func(d *Desc) (int, int, int) {
			return d.Credits, index, CreditSize(d.Levels)
		}},
	{Name: MapTranslate, Type: Hash, Pinned: true, Entries: "`Translations`",
		Value: "key `struct fr_translation_key`, value `struct fr_translation`",
		When:  "translations", of: func(d *Desc) (int, int, int) {
			return d.Translations, TranslationKeySize, TranslationSize
		}},
	{Name: MapEvents, Type: RingBuf, Pinned: true, Entries: "`Ring` bytes, or a page if that is more",
		Value: "records: `struct fr_event` and fields", When: "events",
		of: func(d *Desc) (int, int, int) { return d.Ring, 0, 0 }},
	{Name: MapLost, Type: Array, Mmap: true, Pinned: true, Entries: "events + 1",
		Value: "`u64` records lost because the ring was full, by ID. Entry 0 is the reader's: while it is not 0, the " +
			"kernel doesn't wake it", When: "events",
		of: func(d *Desc) (int, int, int) {
			if d.Ring == 0 {
				return 0, 0, 0
			}
			return len(d.Events) + 1, index, 8
		}},
	{Name: GroupPrefix, PerName: true, Type: HashOfMaps, Pinned: true, Entries: "`Size`",
		Value: "key: the group's; inner map: array of one `struct { u32 count; u32 rows[Max]; }`, rows of `rcv_G` in " +
			"the order of sending", When: "groups"},
	{Name: RowsPrefix, PerName: true, Type: Array, Pinned: true, Entries: "`Rows + Max`", Value: "a receiver's row",
		When: "groups"},
	{Name: TablePrefix, PerName: true, Pinned: true, Entries: "`Size`", Value: "key and value: the table's",
		When: "tables"},
	{Name: MapScratch, Type: PerCPUArray, Entries: "1", Value: "16,384 bytes to move a payload",
		When: "programs that resize packets"},
	{Name: MapFront, Type: PerCPUArray, Entries: "1", Value: "the first bytes of the packet that is being copied",
		When: "fan-outs"},
	{Name: MapCopies, Type: PerCPUArray, Entries: "events with copies that may be lost",
		Value: "the record that is being put together", When: "such events"},
	{Name: MapRows, Type: PerCPUArray, Entries: "1", Value: "copies of the rows that a program has found",
		When: "programs that look rows up"},
	{Name: MapLearned, Type: Array, Entries: "tables that programs write to and read",
		Value: "`u64` rows that they have begun to write",
		When:  "such tables"},
	{Name: MapDevmap, Type: DevmapHash, Entries: fmt.Sprint(Devices),
		Value: "devices that frames may leave by, by index",
		When:  "programs at XDP", of: frames},
	{Name: MapMACs, Type: Hash, Entries: fmt.Sprint(Devices),
		Value: "link-layer addresses of the devices that frames come in by, by index",
		When:  "programs at XDP", of: frames},
}

// frames is the size of the tables of devices.
func frames(d *Desc) (entries, key, value int) {
	if !d.AtXDP() {
		return 0, 0, 0
	}
	return Devices, index, 8
}

// Maps returns the maps that the object of a relay must have, in the order of [MapInfos]. What programs need for
// themselves alone is not among them.
func (d *Desc) Maps() []Map {
	var out []Map
	for _, info := range infos {
		m := Map{Name: info.Name, Type: info.Type, Mmap: info.Mmap, Pinned: info.Pinned}
		add := func(name string, typ MapType, entries, key, value int) {
			m := m
			m.Name, m.Type, m.Entries, m.KeySize, m.ValueSize = name, typ, entries, key, value
			out = append(out, m)
		}
		switch info.Name {
		case GroupPrefix:
			for _, g := range d.Groups {
				m.List = ListSize(g.Max)
				add(info.Name+g.Name, info.Type, g.Size, g.KeySize, index)
			}
		case RowsPrefix:
			for _, g := range d.Groups {
				add(info.Name+g.Name, info.Type, g.Rows+g.Max, index, g.ReceiverSize)
			}
		case TablePrefix:
			for _, t := range d.Tables {
				add(info.Name+t.Name, t.Kind.MapType(t.PerCPU), t.Size, t.KeySize, max(t.ValueSize, 1))
			}
		default:
			if info.of == nil {
				continue
			}
			if entries, key, value := info.of(d); entries > 0 {
				add(info.Name, info.Type, entries, key, value)
			}
		}
	}
	return out
}

// Pinned reports whether a map of that name outlives the process.
func Pinned(name string) bool {
	for _, info := range infos {
		if info.PerName && len(name) > len(info.Name) && name[:len(info.Name)] == info.Name || !info.PerName &&
			name == info.Name {
			return info.Pinned
		}
	}
	return false
}
