// Package api is the language of a relay's control socket: the types of requests and answers, the values of a spec in
// JSON, and the OpenAPI document that describes both. It knows a relay by its [abi.Desc] alone, so clients, which have
// no relay, use it as the server does.
//
// Values in JSON, by [abi.Kind]:
//
//	uint       an integer
//	bool       true or false
//	bytes      hexadecimal digits, "00ff"
//	mac        "00:11:22:33:44:55"
//	ip         "192.0.2.1", "2001:db8::1"
//	endpoint   "192.0.2.1:3478", "[2001:db8::1]:3478"
//	prefix     "203.0.113.0/24"; bits after it are cleared
//	next_hop   the address, as ip
//	counter    an integer; if it is given, its first value
//	credit     an object; if it is given, its limit, an integer
//	bucket     an object; if it is given, one with per_second and burst
//
// If there is a value for each level of priority, it is an array of them. Translations are left out.
package api
