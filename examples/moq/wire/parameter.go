package wire

// Parameters are a message's parameters (§9.20). Those that a draft or a message doesn't have are refused, in both
// directions; all times are in ms.
type Parameters struct {
	ObjectDeliveryTimeout   Optional[uint64]
	Tokens                  []Token
	RendezvousTimeout       Optional[uint64]
	SubgroupDeliveryTimeout Optional[uint64]
	Expires                 Optional[uint64]
	LargestObject           Optional[Location]
	FillTimeout             Optional[uint64]
	Forward                 Optional[bool]
	SubscriberPriority      Optional[uint8]          // 0 is the most urgent; 128 if absent
	LocationFilter          Optional[LocationFilter] // draft 18's SUBSCRIPTION_FILTER
	GroupOrder              Optional[GroupOrder]
	Fill                    *Parameters   // not in draft 18: asks for a fill fetch stream, by these (§9.20.16)
	RangeFilters            []RangeFilter // not in draft 18
	NewGroupRequest         Optional[uint64]
	NamespacePrefix         Optional[Namespace]
	IncludeProperties       Optional[bool] // not in draft 18
}

// GroupOrder says which of a track's groups come first (§9.20.9).
type GroupOrder uint8

// The orders.
const (
	Ascending  GroupOrder = 1
	Descending GroupOrder = 2
)

// Token is an authorization token, or what is done to its alias (§8.9).
type Token struct {
	AliasType AliasType
	Alias     uint64 // not of UseValue
	Type      uint64 // only of Register and UseValue
	Value     string // only of Register and UseValue
}

// AliasType says which members a token has.
type AliasType uint64

// What can be done with a token's alias.
const (
	DeleteAlias AliasType = 0
	Register    AliasType = 1
	UseAlias    AliasType = 2
	UseValue    AliasType = 3
)

// LocationFilter is a range of locations, both ends inclusive (§3.3.1, §9.20.10).
type LocationFilter struct {
	Kind  FilterKind
	Start Location // of FilterRelative only Start.Group, the number of groups before the next one
	End   Location // of FilterGroups only End.Group
}

// FilterKind says which members of a location filter are in use. The numbers are draft 22's.
type FilterKind uint64

// The kinds. Draft 18 has FilterRelative with 0 groups (Next Group Start), FilterStart, FilterGroups (AbsoluteRange)
// and FilterNextObject (Largest Object), and FilterRange in FETCH only.
const (
	FilterNone       FilterKind = 0 // no filter: removes the one there is
	FilterRelative   FilterKind = 1 // from Start.Group groups before the next one; 0 is the next, 1 the current one
	FilterStart      FilterKind = 2 // from Start
	FilterGroups     FilterKind = 3 // from Start to the end of group End.Group
	FilterRange      FilterKind = 4 // from Start to End
	FilterNextObject FilterKind = 5 // from the object after the largest one
)

// RangeFilter passes objects or tracks that have a value in one of its ranges (§3.3.2).
type RangeFilter struct {
	Kind     RangeKind
	Property uint64 // even, only of FilterObjectProperty and FilterTrackProperty
	Ranges   []Range
	Set      uint8 // filters of one set have to pass all, of the sets one
	Removed  bool  // a filter of length 0, with nothing else but Kind: REQUEST_UPDATE removes those of this kind
}

// RangeKind is the parameter type of a range filter.
type RangeKind uint64

// What range filters look at.
const (
	FilterSubgroup       RangeKind = 0x25
	FilterObjectID       RangeKind = 0x26
	FilterPriority       RangeKind = 0x27 // values are at most 255
	FilterObjectProperty RangeKind = 0x28
	FilterTrackProperty  RangeKind = 0x29
)

// Range is a range of values, both ends inclusive. The last one of a filter may be open, its End is 2⁶⁴-1 then.
type Range struct {
	Start, End uint64
	Open       bool
}
