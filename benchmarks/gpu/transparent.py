from part import Part
PART = Part("transparent","transparent",1.0,1.0,{},lambda b: None)
